"""Rounds contributions to an integer grid, so that their sum is exact."""

import math

import jax
import jax.numpy as jnp

from bevel.errors import FixArgumentsError


def tightened(clip_norm: float, grid_scale: int, dimension: int) -> float:
    """The smaller clip norm that keeps rounded contributions within `clip_norm`.

    Rounding to steps of 1 / grid_scale moves each coordinate by at most half a step, and so
    `dimension` coordinates by at most sqrt(dimension) / (2 grid_scale) in L2 norm.
    """
    rounding = math.sqrt(dimension) / (2 * grid_scale)
    if clip_norm == 0:
        raise FixArgumentsError(
            "with a clip norm of 0, every grid is too coarse. Use a positive clip norm."
        )
    if clip_norm <= rounding:
        raise FixArgumentsError(
            f"grid_scale={grid_scale} is too coarse: rounding {dimension} numbers to steps of "
            f"1/{grid_scale} can move them by {rounding:.3g}, which is not below the clip norm "
            f"{clip_norm}. Use grid_scale above {math.ceil(rounding * grid_scale / clip_norm)}, "
            "ideally a hundred times that."
        )
    return clip_norm - rounding


def on_grid(x: jax.Array, grid_scale: int) -> jax.Array:
    """`x` as int64 multiples of 1 / grid_scale."""
    return jnp.round(x * int(grid_scale)).astype(jnp.int64)
