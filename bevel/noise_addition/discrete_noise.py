"""Discrete Gaussian noise on integer sums: a guarantee that does not depend on rounding."""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel.checks import as_float, is_real, scalar, shown
from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys
from bevel.noise_addition.correlation import NoCorrelation
from bevel.noise_addition.discrete_gaussian import LARGEST_SIGMA, DiscreteGaussians
from bevel.noise_addition.gaussian import checked_dtype
from bevel.noise_addition.leaves import checked_leaves, draw_leaves, forbid_vmap
from bevel.noise_addition.state import NoiseState, checked_state, key_of_update

if TYPE_CHECKING:
    from bevel.noise_addition.privatizer import Privatizer

PyTree = Any
INTEGERS_ONLY = (
    "discrete noise is added to sums of signed integers. Compute the sum with "
    "clipped_grad(grid_scale=...), or use gaussian_privatizer."
)


def discrete_gaussian_privatizer(
    *,
    stddev: int,
    prng_key: jax.Array | int | None = None,
    grid_step: float | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    specs: PyTree = None,
) -> "Privatizer":
    """Adds discrete Gaussian noise to the integer sum of `clipped_grad(grid_scale=...)`.

    Changes the privacy guarantee:
      stddev: the noise multiplier times `sensitivity()` of the clipped sum, rounded up: an integer
        number of grid steps, at most 2**26. That sensitivity is in grid steps and includes the
        rounding of contributions to the grid.
      prng_key: a ChaCha20 key; otherwise as in `gaussian_privatizer`.

    Changes outputs:
      grid_step: the noised sum is multiplied by it. Pass l2_clip_norm / grid_scale to get a
        gradient again. If None, the result is int64.
      dtype: the dtype of the product, float32 if None.

    specs: as in `gaussian_privatizer`.

    Formal guarantee: if neighbouring sums differ by at most `sensitivity` in L2 norm, one step is
    `zcdp_rho(stddev, sensitivity)`-zCDP (Canonne, Kamath and Steinke 2020, theorem 4, in its
    multivariate form). It holds for the computed sums and noise, because both are exact: nothing is
    rounded before the noise is added. The rho of several steps add up. No amplification by
    subsampling is claimed, because the theorems for Gaussian noise do not cover discrete noise.

    The noise is the same on every mesh. It costs about ten times as much as Gaussian noise from the
    same generator on a CPU, and over a hundred times as much on a GPU. It needs x64.
    """
    from bevel.noise_addition.privatizer import NoiseRecord, Privatizer  # loads optax

    if not jax.config.jax_enable_x64:
        raise FixArgumentsError(
            "discrete noise needs 64-bit integers: call jax.config.update('jax_enable_x64', True)."
        )
    if grid_step is not None:
        step = scalar(grid_step)
        if not 0 < step < math.inf:
            raise FixArgumentsError(
                f"grid_step={shown(grid_step)}: pass l2_clip_norm / grid_scale, as given to "
                "clipped_grad."
            )
        grid_step = step
    sigma = _checked_sigma(stddev)
    key = keys.noise_key(prng_key)
    if key.generator != "chacha20":
        raise FixArgumentsError(
            f"prng_key is a {key.generator} key, but discrete noise is drawn from ChaCha20: pass "
            "bevel.noise_addition.keys.new_key(), or leave it out."
        )
    noise = _DiscreteNoise(key, sigma, grid_step, checked_dtype(dtype), specs)
    record = NoiseRecord("discrete gaussian", float(sigma), key.generator, key.secret)
    return Privatizer(noise.init, noise.update, record, lambda: keys.claim(key, key.key))


def zcdp_rho(stddev: float, sensitivity: float) -> float:
    """Returns the zCDP rho of one step, sensitivity**2 / (2 stddev**2), both in grid steps."""
    known = is_real(stddev) and is_real(sensitivity)
    if not (known and 0 < as_float(stddev) < math.inf and 0 <= as_float(sensitivity) < math.inf):
        raise FixArgumentsError(
            f"stddev={shown(stddev)}, sensitivity={shown(sensitivity)}: pass finite numbers, "
            "stddev above 0 and sensitivity at least 0."
        )
    stddev, sensitivity = float(stddev), float(sensitivity)
    ratio = sensitivity / stddev  # infinite rather than an error, where the square overflows
    return ratio * ratio / 2


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def _checked_sigma(stddev: Any) -> int:
    is_whole = isinstance(stddev, float) and stddev.is_integer()  # also for 1e300
    sigma = int(stddev) if is_whole else stddev
    if not _is_integer(sigma) or not 1 <= sigma <= LARGEST_SIGMA:
        raise FixArgumentsError(
            f"stddev={shown(stddev)}: pass an integer number of grid steps from 1 to "
            f"{LARGEST_SIGMA}, such as math.ceil(noise_multiplier * grad_fn.sensitivity()). A "
            "larger grid_scale makes it larger, a smaller one smaller."
        )
    return int(sigma)


@dataclasses.dataclass(frozen=True)
class _DiscreteNoise:
    """Adds discrete Gaussian noise to integer sums. A static argument of `_noised_step`."""

    key: keys.NoiseKey
    sigma: int
    grid_step: float | None
    dtype: np.dtype | None
    specs: PyTree = dataclasses.field(compare=False)  # `_noised_step` gets those of the leaves

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
        sums = forbid_vmap([leaf.value for leaf in leaves])
        state = checked_state(noise_state)
        NoCorrelation().check(sums, *state)
        key = key_of_update(self.key, prng_key)
        program = dataclasses.replace(self, key=self.key.without_owner())
        specs = tuple(leaf.spec for leaf in leaves)
        noised = _noised_step(program, specs, key, sums, state.step)
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
    draws = draw_leaves(lambda _: make, key, step, sums, specs)
    noised = [x.astype(np.int64) + z for x, z in zip(sums, draws, strict=True)]
    if noise.grid_step is None:
        return noised
    dtype = np.float32 if noise.dtype is None else noise.dtype
    return [(x.astype(np.float64) * float(noise.grid_step)).astype(dtype) for x in noised]
