"""Adds Gaussian noise to a tree of gradients: draw, correlate, add."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel import precision
from bevel.noise_addition.buffers import move_buffers, place_buffers
from bevel.noise_addition.correlation import Correlation, NoCorrelation
from bevel.noise_addition.keys import NoiseKey
from bevel.noise_addition.leaves import add_draws, checked_leaves, draw_leaves, forbid_vmap
from bevel.noise_addition.noise_layout import SupportedStrategies, flat_like, unflatten
from bevel.noise_addition.normal import RandomNumbers, normal_from_bits
from bevel.noise_addition.state import NoiseState, checked_state, key_of_update

PyTree = Any
PARTS = 3  # of the leaves, whose correlated noise is in memory at once
FLOATS_ONLY = (
    "Gaussian noise is added to real floating-point numbers. For sums on an integer grid use "
    "discrete_gaussian_privatizer; leave other leaves out of the gradient."
)


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """Adds `stddev` times correlated normal samples to a gradient. Static in `noised_step`."""

    key: NoiseKey
    stddev: float
    correlation: Correlation
    dtype: np.dtype | None
    layout: SupportedStrategies
    specs: PyTree = dataclasses.field(compare=False)  # `noised_step` gets those of the leaves
    buffers_in: str = "device"

    def init(self, params: PyTree) -> NoiseState:
        leaves = checked_leaves(params, self.specs, jnp.floating, FLOATS_ONLY)
        likes = [self.like(leaf.value) for leaf in leaves]
        buffers = place_buffers(self.correlation.init(likes), likes, leaves)
        if self.buffers_in == "host":
            buffers = move_buffers(buffers, likes, "host")
        return NoiseState(jnp.zeros((), np.uint32), buffers)

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
        leaves = checked_leaves(sum_of_clipped_grads, self.specs, jnp.floating, FLOATS_ONLY)
        grads = forbid_vmap([leaf.value for leaf in leaves])
        state = checked_state(noise_state)
        self.correlation.check([self.like(g) for g in grads], *state)
        key = key_of_update(self.key, prng_key)
        program = dataclasses.replace(self, key=self.key.without_owner())
        specs = tuple(leaf.spec for leaf in leaves)
        noised, state = noised_step(program, specs, key, grads, state)
        return jax.tree.unflatten(jax.tree.structure(sum_of_clipped_grads), noised), state

    def like(self, leaf: jax.Array) -> jax.Array:
        """Returns an array with the shape, dtype and sharding in which a leaf's noise is drawn."""
        dtype = precision.accumulation_dtype(leaf.dtype)
        return flat_like(leaf, dtype) if self.flat else leaf.astype(dtype)

    @property
    def flat(self) -> bool:
        return self.layout is SupportedStrategies.ZERO

    def add(self, gradient: jax.Array, noise: jax.Array) -> jax.Array:
        noise = noise * noise.dtype.type(self.stddev)
        if self.flat:
            noise = unflatten(noise, gradient)
        return gradient.astype(noise.dtype) + noise


@functools.partial(jax.jit, static_argnums=(0, 1))
def noised_step(
    noise: GaussianNoise,
    specs: tuple[PartitionSpec | None, ...],
    key: jax.Array,
    grads: list[jax.Array],
    state: NoiseState,
) -> tuple[list[jax.Array], NoiseState]:
    """Adds the noise of one step. The `jit` compiles eager calls, and keeps the key an argument."""
    make = functools.partial(RandomNumbers, noise.key.generator, normal_from_bits)
    if isinstance(noise.correlation, NoCorrelation) and not noise.flat:
        likes = [noise.like(g) for g in grads]
        noised = add_draws(make, noise.stddev, key, state.step, likes, specs)
        buffers = state.buffers
    else:
        noised, buffers = _correlated(noise, make, specs, key, grads, state)
    if noise.dtype is not None:
        noised = [x.astype(noise.dtype) for x in noised]
    return noised, NoiseState(state.step + np.uint32(1), buffers)


def _correlated(
    noise: GaussianNoise,
    make: Any,
    specs: tuple[PartitionSpec | None, ...],
    key: jax.Array,
    grads: list[jax.Array],
    state: NoiseState,
) -> tuple[list[jax.Array], tuple[Any, ...]]:
    """Adds correlated noise to one part of the leaves after another.

    Draws and noise are temporaries, so they are only needed for one part at a time. XLA for CPUs
    would draw all parts at once: loops that the compiler cannot see to have a single step, each
    with the counter of the one before, keep the order.
    """
    noised, buffers = list[jax.Array](), list[Any]()
    counter = state.step
    for leaves in _parts(grads) if noise.buffers_in == "device" else [range(len(grads))]:

        def step(
            carried: tuple[jax.Array, list[jax.Array], tuple[Any, ...]],
            leaves: Sequence[int] = leaves,
        ) -> tuple[jax.Array, list[jax.Array], tuple[Any, ...]]:
            counter, sums, own = carried
            likes = [noise.like(x) for x in sums]
            own_specs = [None if noise.flat else specs[leaf] for leaf in leaves]

            def draw(step: jax.Array) -> list[jax.Array]:
                return draw_leaves(make, key, step, likes, own_specs, leaves)

            if noise.buffers_in == "host":
                own = move_buffers(own, likes, "device")
            noises, own = noise.correlation.next(draw, state.step, own)
            if noise.buffers_in == "host":
                own = move_buffers(own, likes, "host")
            added = [noise.add(*pair) for pair in zip(sums, noises, strict=True)]
            return counter + np.uint32(1), added, own

        wide = [grads[leaf].astype(noise.like(grads[leaf]).dtype) for leaf in leaves]
        carried = counter, wide, tuple(state.buffers[leaf] for leaf in leaves if state.buffers)
        end = counter + np.uint32(1)
        if len(leaves) == len(grads):
            counter, sums, own = step(carried)
        else:
            goes_on = functools.partial(_differs, end)
            counter, sums, own = jax.lax.while_loop(goes_on, step, carried)
        noised += sums
        buffers += own
    return noised, tuple(buffers)


def _differs(end: jax.Array, carried: tuple[jax.Array, Any, Any]) -> jax.Array:
    return carried[0] != end


def _parts(grads: list[jax.Array]) -> list[list[int]]:
    """Divides the leaves into up to three parts of about the same size."""
    total = sum(g.size for g in grads)
    parts, before = dict[int, list[int]](), 0
    for leaf, g in enumerate(grads):
        middle = before + g.size / 2
        parts.setdefault(int(PARTS * middle / max(total, 1)), []).append(leaf)
        before += g.size
    return list(parts.values())
