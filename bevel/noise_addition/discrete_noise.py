"""Discrete Gaussian noise on sums of whole numbers: no floating-point argument is needed."""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys
from bevel.noise_addition.correlation import NoCorrelation
from bevel.noise_addition.discrete_gaussian import LARGEST_SIGMA, DiscreteGaussians
from bevel.noise_addition.gaussian import checked_dtype
from bevel.noise_addition.leaves import checked_leaves, drawn, not_mapped
from bevel.noise_addition.state import NoiseState, checked_state, key_of_step

if TYPE_CHECKING:
    from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
INTEGERS_ONLY = (
    "discrete noise is added to sums of whole numbers. Take the sum with "
    "clipped_grad(grid_scale=...), or use gaussian_privatizer."
)


def discrete_gaussian_privatizer(
    *,
    stddev: int,
    prng_key: jax.Array | int | None = None,
    grid_scale: int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    specs: PyTree = None,
) -> "Privatizer":
    """Adds discrete Gaussian noise to the integer sum of `clipped_grad(grid_scale=...)`.

    Changes the privacy guarantee:
      stddev: a whole number of grid steps, up to 2**26: the noise multiplier times `sensitivity()`
        of the clipped sum, rounded up. That sensitivity is in grid steps, and the rounding of
        contributions to the grid is within it.
      prng_key: a ChaCha20 key; otherwise as in `gaussian_privatizer`.

    Changes outputs:
      grid_scale: divide the noised sum by it. If None, the result is int64.
      dtype: of the quotient, float32 if None.

    specs: as in `gaussian_privatizer`.

    Formal guarantee: if neighbouring sums differ by at most `sensitivity` in L2 norm, one step is
    `zcdp_rho(stddev, sensitivity)`-zCDP (Canonne, Kamath and Steinke 2020, theorem 4, in
    its multivariate form), for the exact sums and the exact noise: nothing is rounded before the
    noise is on. Steps add up. No amplification by subsampling is claimed: the theorems for
    Gaussian noise do not cover it.

    The noise is exact, and the same on every mesh. It costs about ten times as much as Gaussian
    noise from the same generator on a CPU, and over a hundred times as much on a GPU. Needs x64.
    """
    from bevel.noise_addition.privatizer import NoiseRecord, Privatizer  # loads optax

    if not jax.config.jax_enable_x64:
        raise FixArgumentsError(
            "discrete noise is int64, which JAX has only with "
            "jax.config.update('jax_enable_x64', True)."
        )
    if grid_scale is not None and (not _is_whole(grid_scale) or grid_scale < 1):
        raise FixArgumentsError(
            f"grid_scale={grid_scale!r}: give the one of clipped_grad, a positive whole number."
        )
    sigma = _checked_sigma(stddev)
    key = keys.noise_key(prng_key)
    if key.generator != "chacha20":
        raise FixArgumentsError(
            f"discrete noise is drawn from ChaCha20, and prng_key is a {key.generator} key: pass "
            "bevel.noise_addition.keys.new_key(), or leave it out."
        )
    found = checked_dtype(dtype)
    keys.claim(key, key.key)
    noise = _DiscreteNoise(key, sigma, grid_scale, found, specs)
    record = NoiseRecord("discrete gaussian", float(sigma), key.generator, key.secret)
    return Privatizer(noise.init, noise.update, record)


def zcdp_rho(stddev: float, sensitivity: float) -> float:
    """The zCDP parameter of one step: sensitivity**2 / (2 stddev**2), both in grid steps."""
    if not (0 < stddev < math.inf and 0 <= sensitivity < math.inf):
        raise FixArgumentsError(
            f"stddev={stddev}, sensitivity={sensitivity}: give finite lengths, stddev above 0."
        )
    return sensitivity**2 / (2 * stddev**2)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _checked_sigma(stddev: Any) -> int:
    whole = int(stddev) if isinstance(stddev, float) and stddev.is_integer() else stddev
    if not _is_whole(whole) or not 1 <= whole <= LARGEST_SIGMA:
        raise FixArgumentsError(
            f"stddev={stddev!r}: give a whole number of grid steps from 1 to {LARGEST_SIGMA}, "
            "such as math.ceil(noise_multiplier * grad_fn.sensitivity()). A finer or coarser grid "
            "(grid_scale) makes it larger or smaller."
        )
    return int(whole)


@dataclasses.dataclass(frozen=True)
class _DiscreteNoise:
    """Discrete Gaussians, added to the leaves of an integer gradient. Keys the program."""

    key: keys.NoiseKey
    sigma: int
    grid_scale: int | None
    dtype: np.dtype | None
    specs: PyTree = dataclasses.field(compare=False)  # the program is keyed by those of leaves

    def init(self, params: PyTree) -> NoiseState:
        return NoiseState(jnp.zeros((), np.uint32), ())

    def update(
        self,
        sum_of_clipped_grads: PyTree,
        noise_state: NoiseState,
        params: PyTree = None,
        *,
        prng_key: jax.Array | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree, NoiseState]:
        del params, extra_args
        leaves = checked_leaves(sum_of_clipped_grads, self.specs, jnp.signedinteger, INTEGERS_ONLY)
        sums = not_mapped([leaf.value for leaf in leaves])
        state = checked_state(noise_state)
        NoCorrelation().check(sums, *state)
        key = key_of_step(self.key, prng_key)
        noised = _noised_step(self, tuple(leaf.spec for leaf in leaves), key, sums, state.step)
        tree = jax.tree.structure(sum_of_clipped_grads)
        return jax.tree.unflatten(tree, noised), state._replace(step=state.step + np.uint32(1))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _noised_step(
    noise: _DiscreteNoise,
    specs: tuple[PartitionSpec | None, ...],
    key: jax.Array,
    sums: list[jax.Array],
    step: jax.Array,
) -> list[jax.Array]:
    make = DiscreteGaussians(noise.sigma)
    draws = drawn(lambda _: make, key, step, sums, specs, one_by_one=True)
    noised = [x.astype(np.int64) + z for x, z in zip(sums, draws, strict=True)]
    if noise.grid_scale is None:
        return noised
    dtype = np.float32 if noise.dtype is None else noise.dtype
    return [(x.astype(np.float64) / float(noise.grid_scale)).astype(dtype) for x in noised]
