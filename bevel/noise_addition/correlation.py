"""Correlation of noise over steps: none, a dense matrix, or a streaming matrix."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import without_mask
from bevel.errors import FixArgumentsError
from bevel.sharding import types

Draw = Callable[[jax.Array], list[jax.Array]]
"""Returns independent standard normal samples of a given step, for all leaves."""


class Correlation(Protocol):
    """Computes the noise of a step from draws and buffers, for all leaves at once."""

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        """Returns the buffers before step 0."""

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        """Raises if the step or the buffers are invalid, as far as known while tracing."""

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        """Returns the noise of a step and the buffers after it."""


@dataclasses.dataclass(frozen=True)
class NoCorrelation:
    """Independent noise: the draws of the step itself. No buffers."""

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        return ()

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        _check_shapes((), buffers)

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        return draw(step), buffers


class DenseMatrix:
    """Noise of a dense matrix B: row k holds the coefficients of the draws in the noise of step k.

    The draws of other steps are generated again, so there are no buffers. Step k generates one draw
    for each column from the first to the last non-zero entry of its row. Steps after the last row
    give NaN, because no privacy was computed for them.

    Entries above the diagonal use the draws of later steps. The noise B z then has the distribution
    of L z for the lower triangular L with L L' = B B', and L^-1 and B^-1 have the same column norms
    and products, because L = B Q for a rotation Q. So B protects sums that depend on earlier
    outputs as well as L does.
    """

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix
        used = matrix != 0
        self.firsts = np.argmax(used, axis=1).astype(np.uint32)
        ends = np.where(used.any(axis=1), len(matrix) - np.argmax(used[:, ::-1], axis=1), 0)
        self.ends = ends.astype(np.uint32)

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        return ()

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        _check_shapes((), buffers)
        if not isinstance(step, jax.core.Tracer) and int(step) >= len(self.matrix):
            raise FixArgumentsError(
                f"step {int(step)} is out of range: noising_matrix has {len(self.matrix)} rows, "
                "and privacy was computed for these only. Pass a matrix with a row for every step."
            )

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        row = jnp.asarray(self.matrix).at[step].get(mode="fill", fill_value=math.nan)
        # After the last row nothing is drawn, and the sums start from NaN.
        first = jnp.asarray(self.firsts).at[step].get(mode="fill", fill_value=2**32 - 1)
        end = jnp.asarray(self.ends).at[step].get(mode="fill", fill_value=0)
        start = jnp.where(step < np.uint32(len(self.matrix)), np.float32(0), np.float32(math.nan))

        def add(s: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
            return [x + row[s].astype(x.dtype) * z for x, z in zip(sums, draw(s), strict=True)]

        zeros = [types.zeros_of_type(z) for z in jax.eval_shape(draw, step)]
        sums = [x + start.astype(x.dtype) for x in zeros]
        return jax.lax.fori_loop(first, end, add, sums), buffers


class Streamed:
    """Noise of a `StreamingMatrix`, which keeps the state of earlier steps in buffers."""

    def __init__(self, matrix: Any):
        self.matrix = matrix

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        return tuple(self.matrix.init_multiply(like) for like in likes)

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        _check_shapes(jax.eval_shape(self.init, likes), buffers)

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        steps = [self.matrix.multiply_next(*one) for one in zip(draw(step), buffers, strict=True)]
        return [y for y, _ in steps], tuple(state for _, state in steps)


def _check_shapes(expected: Any, buffers: Any) -> None:
    """Raises unless buffers have the structure, shapes and dtypes that `init` returns."""

    def types_of(tree: Any) -> Any:
        return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)

    structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, buffers)]
    if structures[0] == structures[1] and types_of(expected) == types_of(buffers):
        return
    raise FixArgumentsError(
        f"the noise state has buffers {types_of(buffers)!s:.300}, but this privatizer needs "
        f"{types_of(expected)!s:.300} for this gradient. The state belongs to another privatizer, "
        "gradient or layout: pass the result of `init` for these parameters."
    )


def correlation_of(noising_matrix: Any) -> DenseMatrix | Streamed:
    """Checks the `noising_matrix` argument of a privatizer and returns its correlation."""
    if hasattr(noising_matrix, "init_multiply") and hasattr(noising_matrix, "multiply_next"):
        return Streamed(noising_matrix)
    if hasattr(noising_matrix, "inverse_as_streaming_matrix"):
        raise FixArgumentsError(
            f"noising_matrix is a {type(noising_matrix).__name__}, a strategy matrix C. Noise is "
            "multiplied by its inverse: pass noising_matrix.inverse_as_streaming_matrix()."
        )
    without_mask("noising_matrix", noising_matrix)
    try:
        matrix = np.asarray(noising_matrix).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError) as error:
        raise FixArgumentsError(
            f"noising_matrix is a {type(noising_matrix).__name__}: pass C^-1 as a square array of "
            "real numbers, or as a StreamingMatrix."
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise FixArgumentsError(
            f"noising_matrix has shape {matrix.shape}. Expected 2D and square: pass C^-1, with a "
            "row per step."
        )
    if not np.all(np.isfinite(matrix)):
        raise FixArgumentsError("noising_matrix contains NaN or infinity: pass finite numbers.")
    silent = np.flatnonzero(~matrix.any(axis=1))
    if silent.size:
        warnings.warn(
            f"row {silent[0]} of noising_matrix is zero, so this step is released without noise. "
            "Pass an invertible C^-1, unless this step needs no privacy.",
            stacklevel=3,
        )
    return DenseMatrix(matrix.astype(np.float64 if jax.config.jax_enable_x64 else np.float32))
