"""Gaussian noise, independent or correlated over steps, as optax transformations."""

import math
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys
from bevel.noise_addition.correlation import Correlation, NoCorrelation, correlation_of
from bevel.noise_addition.gaussian_noise import GaussianNoise
from bevel.noise_addition.noise_layout import SupportedStrategies

if TYPE_CHECKING:
    from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
SMALLEST = 2.0**-60  # of standard deviations: draws come down to 2**-64 and stay normal numbers


def gaussian_privatizer(
    *,
    stddev: float,
    prng_key: jax.Array | int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT,
    specs: PyTree = None,
) -> "Privatizer":
    """Adds independent Gaussian noise to a sum of clipped gradients.

    The arguments are those of `matrix_factorization_privatizer`, whose matrix is the identity here.
    """
    return _privatizer_of(
        NoCorrelation(), stddev, prng_key, dtype, intermediate_strategy, specs, "device"
    )


def matrix_factorization_privatizer(
    noising_matrix: Any,
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
      noising_matrix: C^-1, the inverse of the strategy: a dense lower triangular array, or a
        `StreamingMatrix`. A dense matrix needs no memory, but step k draws up to k + 1 times; a
        streaming one keeps buffers of the gradient's size. Steps past the end of a matrix give NaN.
      stddev: of the uncorrelated noise z: the noise multiplier, times the sensitivity of C, times
        `sensitivity()` of the clipped sum.
      prng_key: a typed key that serves nothing else. None draws one from the operating system; an
        integer is a seed for tests, and is recorded as not secret. See `noise_addition.keys`.

    Changes outputs:
      dtype: of the result. Noise is drawn and added in float32 (float64 for float64 gradients), and
        so is the result if None.

    Changes speed and memory only:
      intermediate_strategy: DEFAULT or ZERO, see `SupportedStrategies`.
      buffers_in: 'host' keeps buffers in the host's memory between steps.

    Inside `jax.shard_map`:
      specs: the PartitionSpecs (a prefix of the gradient's tree) that split the gradient there. A
        shard cannot know where it lies in the whole, so a leaf that differs between shards and has
        no spec is refused. Ignored elsewhere.

    Noise is a function of the key, the step, the number of the leaf in the tree, and the offset of
    the element in the whole leaf. So it is the same on every mesh: a replicated leaf gets identical
    noise on every replica, a sharded one its slice, and nothing is communicated. The draws of step
    k are those of `jax.random.fold_in(jax.random.fold_in(prng_key, k), leaf)`.

    Returns:
      An optax transformation: `init(params)` gives the state (step and buffers, not the key), and
      `update(sum_of_clipped_grads, noise_state)` gives the noised sum and the next state. What it
      adds is in its `record`.
    """
    correlation = correlation_of(noising_matrix)
    return _privatizer_of(
        correlation, stddev, prng_key, dtype, intermediate_strategy, specs, buffers_in
    )


def _privatizer_of(
    correlation: Correlation,
    stddev: float,
    prng_key: jax.Array | int | None,
    dtype: Any,
    strategy: SupportedStrategies,
    specs: PyTree,
    buffers_in: str,
) -> "Privatizer":
    """Arguments as users write them, checked, as an optax transformation."""
    from bevel.noise_addition.privatizer import NoiseRecord, Privatizer  # loads optax

    if not isinstance(strategy, SupportedStrategies):
        raise FixArgumentsError(
            f"intermediate_strategy={strategy!r}: give SupportedStrategies.DEFAULT or ZERO."
        )
    if buffers_in not in ("device", "host"):
        raise FixArgumentsError(f"buffers_in={buffers_in!r}: give 'device' or 'host'.")
    key = keys.noise_key(prng_key)
    noise = GaussianNoise(
        key, _checked_stddev(stddev), correlation, checked_dtype(dtype), strategy, specs, buffers_in
    )
    keys.claim(key, key.key)
    record = NoiseRecord("gaussian", noise.stddev, key.generator, key.secret)
    return Privatizer(noise.init, noise.update, record)


def _checked_stddev(stddev: Any) -> float:
    """A standard deviation as a float; raises unless it is a known number that is not negative."""
    if isinstance(stddev, jax.core.Tracer):
        raise FixArgumentsError(
            "stddev is traced, so what is added cannot be recorded: pass a number."
        )
    if (
        isinstance(stddev, bool | str | bytes)
        or np.ndim(stddev)
        or not hasattr(stddev, "__float__")
    ):
        raise FixArgumentsError(f"stddev={stddev!r:.60}: give a number.")
    value = float(stddev)
    if not 0 <= value < math.inf:
        raise FixArgumentsError(
            f"stddev={value}: give a finite number that is not negative, the noise multiplier "
            "times the sensitivity."
        )
    if value and not SMALLEST <= value <= 1 / SMALLEST:
        raise FixArgumentsError(
            f"stddev={value}: noise is drawn in float32, whose range ends near there, so that some "
            f"of it would be lost. Scale the gradient, and stddev with it, to between {SMALLEST:g} "
            f"and {1 / SMALLEST:g}."
        )
    return value


def checked_dtype(dtype: Any) -> np.dtype | None:
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise FixArgumentsError(f"dtype={dtype!r:.60}: give a dtype, such as float32.") from error
    if not jnp.issubdtype(found, jnp.floating):
        raise FixArgumentsError(f"dtype={found}: noised gradients are real floating-point numbers.")
    if found == np.float64 and not jax.config.jax_enable_x64:
        raise FixArgumentsError(
            "dtype=float64 needs jax.config.update('jax_enable_x64', True): without it JAX would "
            "give float32."
        )
    return found
