"""Privatizers for Gaussian noise, independent or correlated over steps."""

import math
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import one_of, scalar, shown
from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys
from bevel.noise_addition.correlation import Correlation, NoCorrelation, correlation_of
from bevel.noise_addition.gaussian_noise import GaussianNoise
from bevel.noise_addition.noise_layout import SupportedStrategies

if TYPE_CHECKING:
    from bevel.matrix_factorization.streaming_matrix import StreamingMatrix
    from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
# Draws are as small as 2**-64. With this stddev, their products are still normal float32 numbers.
MIN_STDDEV = 2.0**-60


def gaussian_privatizer(
    *,
    stddev: float,
    prng_key: jax.Array | int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT,
    specs: PyTree = None,
) -> "Privatizer":
    """Adds independent Gaussian noise to a sum of clipped gradients.

    This is `matrix_factorization_privatizer` with the identity matrix; see there for the arguments.
    """
    return _make_privatizer(
        NoCorrelation(), stddev, prng_key, dtype, intermediate_strategy, specs, "device"
    )


def matrix_factorization_privatizer(
    noising_matrix: "jax.typing.ArrayLike | StreamingMatrix[Any]",
    *,
    stddev: float,
    prng_key: jax.Array | int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT,
    specs: PyTree = None,
    buffers_in: Literal["device", "host"] = "device",
) -> "Privatizer":
    """Adds Gaussian noise that is correlated over steps: `stddev * (C^-1 z)[step]`.

    Changes the privacy guarantee:
      noising_matrix: C^-1 for the strategy matrix C: a dense square array, which needs no memory
        but generates a draw for each non-zero entry of a row, or a `StreamingMatrix`, which keeps
        buffers of the gradient's size. A matrix made for n steps gives NaN from step n on. Entries
        above the diagonal are coefficients of the draws of later steps. The guarantee is that of
        Gaussian noise with covariance `C^-1 (C^-1)'`; a row of zeros adds no noise, and warns.
      stddev: the standard deviation of the uncorrelated noise z: the noise multiplier, times the
        sensitivity of C, times `sensitivity()` of the clipped sum.
      prng_key: a typed key that nothing else uses. None draws one from the operating system. An
        integer is a seed for tests and is recorded as not secret. See `noise_addition.keys`.

    Changes outputs:
      dtype: the dtype of the result. Noise is drawn and added in float32 (float64 for float64
        gradients); None keeps that dtype.

    Changes speed and memory only:
      intermediate_strategy: DEFAULT or ZERO, see `SupportedStrategies`.
      buffers_in: 'host' keeps the buffers in host memory between steps.

    Inside `jax.shard_map`:
      specs: the PartitionSpecs of the gradient, a prefix of its tree. A shard does not know its
        offset in the global array, so a leaf that differs between shards and has no spec is an
        error. Ignored outside of `jax.shard_map`.

    The noise is a function of the key, the step, the index of the leaf in the tree, and the offset
    of the element in the global leaf, so it is the same on every mesh. Replicated leaves get
    identical noise on every replica, sharded leaves get their slice, and nothing is communicated.
    The draws of step k use the key `jax.random.fold_in(jax.random.fold_in(prng_key, k), leaf)`.

    Returns:
      An optax transformation. `init(params)` returns the noise state (step and buffers, not the
      key), and `update(sum_of_clipped_grads, noise_state)` returns the noised sum and the next
      state. Its `record` describes the noise.
    """
    correlation = correlation_of(noising_matrix)
    return _make_privatizer(
        correlation, stddev, prng_key, dtype, intermediate_strategy, specs, buffers_in
    )


def _make_privatizer(
    correlation: Correlation,
    stddev: float,
    prng_key: jax.Array | int | None,
    dtype: Any,
    layout: SupportedStrategies,
    specs: PyTree,
    buffers_in: str,
) -> "Privatizer":
    """Checks the arguments of a privatizer and makes it."""
    from bevel.noise_addition.privatizer import NoiseRecord, Privatizer  # loads optax

    if not isinstance(layout, SupportedStrategies):
        raise FixArgumentsError(
            f"intermediate_strategy={shown(layout)}: pass SupportedStrategies.DEFAULT or ZERO."
        )
    one_of("buffers_in", buffers_in, ("device", "host"))
    key = keys.noise_key(prng_key)
    noise = GaussianNoise(
        key, _checked_stddev(stddev), correlation, checked_dtype(dtype), layout, specs, buffers_in
    )
    record = NoiseRecord("gaussian", noise.stddev, key.generator, key.secret)
    return Privatizer(noise.init, noise.update, record, lambda: keys.claim(key, key.key))


def _checked_stddev(stddev: Any) -> float:
    """Returns `stddev` as a float; raises unless it is a concrete number of at least 0."""
    if isinstance(stddev, jax.core.Tracer):
        raise FixArgumentsError(
            "stddev is traced, so the privatizer cannot record it: pass a concrete number."
        )
    value = scalar(stddev)
    if math.isnan(value):
        raise FixArgumentsError(f"stddev={shown(stddev)}: pass a number.")
    if not 0 <= value < math.inf:
        raise FixArgumentsError(
            f"stddev={value}: pass a finite number of at least 0, the noise multiplier times the "
            "sensitivity."
        )
    if value and not MIN_STDDEV <= value <= 1 / MIN_STDDEV:
        raise FixArgumentsError(
            f"stddev={value}: noise of this scale would underflow or overflow in float32. Scale "
            f"gradient and stddev so that stddev is from {MIN_STDDEV:g} to {1 / MIN_STDDEV:g}."
        )
    return value


def checked_dtype(dtype: Any) -> np.dtype | None:
    """Returns the dtype of a noised gradient; raises unless it is a floating-point dtype."""
    if dtype is None:
        return None
    try:
        result = np.dtype(dtype)
    except Exception as error:  # NumPy reads attributes and strings of any kind
        raise FixArgumentsError(f"dtype={shown(dtype)}: pass a dtype, such as float32.") from error
    if not jnp.issubdtype(result, jnp.floating):
        raise FixArgumentsError(f"dtype={result}: pass a real floating-point dtype.")
    if result == np.float64 and not jax.config.jax_enable_x64:
        raise FixArgumentsError(
            "dtype=float64 needs jax.config.update('jax_enable_x64', True): without it JAX would "
            "return float32."
        )
    return result
