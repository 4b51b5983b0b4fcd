"""Rounds contributions to an integer grid, so that their sum is exact."""

import math

import jax
import jax.numpy as jnp

from bevel.errors import FixArgumentsError


def tightened(clip_norm: float, grid_scale: int, dimension: int) -> float:
    """The smaller clip norm that keeps rounded contributions within `clip_norm`.

    Rounding moves each coordinate by at most half a step, and so `dimension` coordinates by at most
    sqrt(dimension) / 2 steps in L2 norm. The clip norm is `grid_scale` steps.
    """
    rounding = math.sqrt(dimension) / 2
    if grid_scale <= rounding:
        raise FixArgumentsError(
            f"grid_scale={grid_scale} is too coarse: rounding {dimension} numbers can move them by "
            f"{rounding:.3g} steps, and the clip norm is {grid_scale} steps. Use grid_scale above "
            f"{math.ceil(rounding)}, ideally a hundred times that."
        )
    return clip_norm * (1 - rounding / grid_scale)


def on_grid(x: jax.Array, clip_norm: float, grid_scale: int) -> jax.Array:
    """`x` as int64 multiples of clip_norm / grid_scale."""
    return jnp.round(x * float(grid_scale / clip_norm)).astype(jnp.int64)
