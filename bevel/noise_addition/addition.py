"""Gaussian noise on a tree of gradients: draw, correlate, add."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bevel import precision
from bevel.noise_addition.correlation import Correlation
from bevel.noise_addition.keys import NoiseKey
from bevel.noise_addition.leaves import Leaf, checked_leaves, drawn
from bevel.noise_addition.normal import RandomWords, normal_from_bits
from bevel.noise_addition.state import NoiseState, checked_state, key_of_step
from bevel.noise_addition.strategies import SupportedStrategies, flat_like, unflattened
from bevel.sharding import types
from bevel.sharding.axes import placement
from bevel.sharding.placed import placed_like

PyTree = Any
FLOATS_ONLY = (
    "Gaussian noise is added to real floating-point numbers. Sums on the integer grid take "
    "discrete_gaussian_privatizer; other leaves do not belong in a gradient."
)


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """`stddev` times correlated normals, added to the leaves of a gradient. Keys the program."""

    key: NoiseKey
    stddev: float
    correlation: Correlation
    dtype: np.dtype | None
    strategy: SupportedStrategies
    specs: PyTree = dataclasses.field(compare=False)  # the program is keyed by those of leaves
    buffers_in: str = "device"

    def init(self, params: PyTree) -> NoiseState:
        leaves = checked_leaves(params, self.specs, jnp.floating, FLOATS_ONLY)
        likes = [self.like(leaf.value) for leaf in leaves]
        buffers = self.correlation.init(likes)
        if buffers:
            places = zip(buffers, likes, leaves, strict=True)
            buffers = self.stored(tuple(placed(*place) for place in places), likes)
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
        grads = [leaf.value for leaf in leaves]
        state = checked_state(noise_state)
        self.correlation.check([self.like(g) for g in grads], *state)
        key = key_of_step(self.key, prng_key)
        noised, state = noised_step(self, tuple(leaf.spec for leaf in leaves), key, grads, state)
        return jax.tree.unflatten(jax.tree.structure(sum_of_clipped_grads), noised), state

    def like(self, leaf: jax.Array) -> jax.Array:
        """What the noise of a leaf is like, before it is given the leaf's own shape."""
        dtype = precision.accumulation_dtype(leaf.dtype)
        return flat_like(leaf, dtype) if self.flat else leaf.astype(dtype)

    @property
    def flat(self) -> bool:
        return self.strategy is SupportedStrategies.ZERO

    def added(self, gradient: jax.Array, noise: jax.Array) -> jax.Array:
        noise = noise * noise.dtype.type(self.stddev)
        if self.flat:
            noise = unflattened(noise, gradient)
        total = gradient.astype(noise.dtype) + noise
        return total if self.dtype is None else total.astype(self.dtype)

    def stored(self, buffers: tuple[Any, ...], likes: list[jax.Array]) -> tuple[Any, ...]:
        """Buffers where they are kept between steps."""
        return self.moved(buffers, likes, jax.memory.Space.Host)

    def fetched(self, buffers: tuple[Any, ...], likes: list[jax.Array]) -> tuple[Any, ...]:
        return self.moved(buffers, likes, jax.memory.Space.Device)

    def moved(self, buffers: Any, likes: list[jax.Array], space: Any) -> Any:
        if self.buffers_in == "device":
            return buffers

        def move(x: jax.Array, like: jax.Array) -> jax.Array:
            return jax.device_put(x, space) if is_shaped_like(x, like) else x

        pairs = zip(buffers, likes, strict=True)
        return tuple(jax.tree.map(lambda x, like=like: move(x, like), b) for b, like in pairs)


@functools.partial(jax.jit, static_argnums=(0, 1))
def noised_step(
    noise: GaussianNoise,
    specs: tuple[PartitionSpec | None, ...],
    key: jax.Array,
    grads: list[jax.Array],
    state: NoiseState,
) -> tuple[list[jax.Array], NoiseState]:
    """One step. Under a `jit` of its own, so that eager calls have one program, without the key."""
    likes = [noise.like(g) for g in grads]
    places = [None] * len(specs) if noise.flat else specs
    make = RandomWords(noise.key.generator)

    def draw(step: jax.Array) -> list[jax.Array]:
        bits = drawn(make, key, step, likes, places)
        return [normal_from_bits(x, like.dtype) for x, like in zip(bits, likes, strict=True)]

    buffers = noise.fetched(state.buffers, likes) if state.buffers else ()
    noises, buffers = noise.correlation.next(draw, state.step, buffers)
    noised = [noise.added(*pair) for pair in zip(grads, noises, strict=True)]
    buffers = noise.stored(buffers, likes) if buffers else ()
    return noised, NoiseState(state.step + np.uint32(1), buffers)


def is_shaped_like(buffer: jax.Array, like: jax.Array) -> bool:
    """Whether a buffer holds the elements of a leaf, behind leading dimensions."""
    lead = buffer.ndim - like.ndim
    return like.ndim > 0 and lead >= 0 and buffer.shape[lead:] == like.shape


def placed(buffers: Any, like: jax.Array, leaf: Leaf) -> Any:
    """The buffers of one leaf, each where `like` is: leading dimensions lie on no mesh axis."""

    def place(buffer: jax.Array) -> jax.Array:
        if not is_shaped_like(buffer, like):
            return buffer
        if types.manual_axes():
            return types.as_varying(buffer, types.varying_axes(leaf.value))
        known = placement(like) or types.explicit_sharding(like)
        if known is not None:
            spec = PartitionSpec(*(None,) * (buffer.ndim - like.ndim), *known.spec.partitions)
            buffer = jax.device_put(buffer, NamedSharding(known.mesh, spec))
        if isinstance(like, jax.core.Tracer):
            return placed_like(buffer, jnp.broadcast_to(like, buffer.shape))
        return buffer

    return jax.tree.map(place, buffers)
