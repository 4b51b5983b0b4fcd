"""Contributions as whole numbers, whose sum has no rounding at all."""

import math

import jax
import jax.numpy as jnp

from bevel.errors import FixArgumentsError


def tightened(clip_norm: float, grid_scale: int, dimension: int) -> float:
    """The clip norm that leaves room for rounding: each coordinate moves by at most half a step.

    With steps of 1 / grid_scale, rounding moves `dimension` coordinates by at most
    sqrt(dimension) / (2 grid_scale) in L2 norm, so the rounded contribution is within clip_norm.
    """
    room = math.sqrt(dimension) / (2 * grid_scale)
    if clip_norm == 0:
        raise FixArgumentsError("with a clip norm of 0 every grid is too coarse: raise it.")
    if clip_norm <= room:
        raise FixArgumentsError(
            f"grid_scale={grid_scale} is too coarse: rounding {dimension} numbers to steps of "
            f"1/{grid_scale} can move them by {room:.3g}, which is not below the clip norm "
            f"{clip_norm}. Use grid_scale above {math.ceil(room * grid_scale / clip_norm)}, best "
            "a hundred times that."
        )
    return clip_norm - room


def on_grid(x: jax.Array, grid_scale: int) -> jax.Array:
    """`x` as int64 multiples of 1 / grid_scale."""
    return jnp.round(x * int(grid_scale)).astype(jnp.int64)
