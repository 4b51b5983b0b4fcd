"""The noise state of a privatizer, and the key of an update."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys


class NoiseState(NamedTuple):
    """The state of a privatizer: a tree of arrays that you can save, donate and shard.

    The key is not part of it. The independent noise of step k is a function of (key, k), so it can
    be drawn again after a crash. Correlated noise continues from its buffers, which reveal noise.
    """

    step: jax.Array
    buffers: tuple[Any, ...] = ()


def checked_state(state: Any) -> NoiseState:
    """Returns `state`; raises unless it is a NoiseState with a uint32 step."""
    if not isinstance(state, NoiseState):
        raise FixArgumentsError(
            f"noise_state is a {type(state).__name__}: pass the NoiseState that `init` or the last "
            "`update` returned."
        )
    shape, dtype = jnp.shape(state.step), jnp.result_type(state.step)
    if shape or dtype != np.uint32:
        raise FixArgumentsError(
            f"noise_state.step is {dtype}{list(shape)}, not a uint32 scalar. For step k write "
            "noise_state._replace(step=jnp.uint32(k))."
        )
    return state


def key_of_update(own: keys.NoiseKey, prng_key: jax.Array | None) -> jax.Array:
    """Returns the key of one update: `prng_key` if there is one, else the privatizer's own."""
    if prng_key is None:
        keys.claim(own, own.key)
        return own.key
    generator = keys.checked_generator(prng_key)
    if generator != own.generator:
        raise FixArgumentsError(
            f"update got a {generator} key, but this privatizer draws from {own.generator}. Make "
            f"the privatizer with a {generator} key, or pass a {own.generator} key to update."
        )
    keys.claim(own, prng_key)
    return prng_key
