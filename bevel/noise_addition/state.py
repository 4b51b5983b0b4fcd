"""The state of a privatizer, and the key of an update."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys


class NoiseState(NamedTuple):
    """The state of a privatizer: a tree of arrays that can be saved, donated and sharded.

    The key is not part of it. The independent noise of step k is a function of (key, k), so it can
    be drawn again after a crash. Correlated noise goes on from its buffers.
    """

    step: jax.Array
    buffers: tuple[Any, ...] = ()


def checked_state(state: Any) -> NoiseState:
    if not isinstance(state, NoiseState):
        raise FixArgumentsError(
            f"noise_state is a {type(state).__name__}: pass what `init` or the last `update` gave, "
            "a NoiseState."
        )
    shape, dtype = jnp.shape(state.step), jnp.result_type(state.step)
    if shape or dtype != np.uint32:
        raise FixArgumentsError(
            f"noise_state.step is {dtype}{list(shape)}: it is one number, uint32, as `init` gave "
            "it. For step k write noise_state._replace(step=jnp.uint32(k))."
        )
    return state


def key_of_step(own: keys.NoiseKey, given: jax.Array | None) -> jax.Array:
    """The key of one update: the privatizer's own, unless one is given for it."""
    if given is None:
        return own.key
    generator = keys.checked_generator(given)
    if generator != own.generator:
        raise FixArgumentsError(
            f"update was given a {generator} key, and this privatizer draws from {own.generator}: "
            "make it with a key of that generator."
        )
    keys.claim(own, given)
    return given
