"""How the noise of a step depends on the draws of earlier steps: not at all, or by a matrix."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.sharding import types

Draw = Callable[[jax.Array], list[jax.Array]]
"""Independent standard normals of any step, for all leaves."""


class Correlation(Protocol):
    """Makes the noise of a step from draws and buffers, for all leaves at once."""

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        """Buffers before step 0."""

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        """Raises unless step and buffers can go on, as far as can be seen."""

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        """The noise of a step, and the buffers after it."""


@dataclasses.dataclass(frozen=True)
class NoCorrelation:
    """Noise of the step's own draws. No buffers."""

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        return ()

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        _check_shapes((), buffers)

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        return draw(step), buffers


class DenseMatrix:
    """Noise of row `step` of a dense matrix: earlier draws are drawn again. No buffers.

    Step k costs as many draws as its row reaches back. Steps past the last row give NaN: no
    privacy was computed for them.
    """

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix
        self.firsts = np.argmax(matrix != 0, axis=1).astype(np.uint32)

    def init(self, likes: list[jax.Array]) -> tuple[Any, ...]:
        return ()

    def check(self, likes: list[jax.Array], step: jax.Array, buffers: tuple[Any, ...]) -> None:
        _check_shapes((), buffers)
        if not isinstance(step, jax.core.Tracer) and int(step) >= len(self.matrix):
            raise FixArgumentsError(
                f"this is step {int(step)}, and noising_matrix has {len(self.matrix)} rows: the "
                "privacy of further steps was not computed. Make the matrix as large as the run."
            )

    def next(
        self, draw: Draw, step: jax.Array, buffers: tuple[Any, ...]
    ) -> tuple[list[jax.Array], tuple[Any, ...]]:
        row = jnp.asarray(self.matrix).at[step].get(mode="fill", fill_value=math.nan)
        # Past the end nothing is drawn, and sums start from NaN.
        first = jnp.asarray(self.firsts).at[step].get(mode="fill", fill_value=2**32 - 1)
        start = jnp.where(step < np.uint32(len(self.matrix)), np.float32(0), np.float32(math.nan))

        def add(s: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
            return [x + row[s].astype(x.dtype) * z for x, z in zip(sums, draw(s), strict=True)]

        zeros = [types.zeros_of_type(z) for z in jax.eval_shape(draw, step)]
        sums = [x + start.astype(x.dtype) for x in zeros]
        return jax.lax.fori_loop(first, step + np.uint32(1), add, sums), buffers


class Streamed:
    """Noise of a `StreamingMatrix`, which keeps what it needs of the past in buffers."""

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


def _check_shapes(expected: Any, found: Any) -> None:
    """Raises unless buffers have the structure, shapes and dtypes of those that `init` makes."""

    def kinds(tree: Any) -> Any:
        return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)

    structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, found)]
    if structures[0] == structures[1] and kinds(expected) == kinds(found):
        return
    raise FixArgumentsError(
        f"the noise state has buffers {kinds(found)!s:.300}, and this privatizer makes "
        f"{kinds(expected)!s:.300} for this gradient: the state is that of another privatizer, "
        "another gradient or another layout. Pass what `init` gave for these parameters."
    )


def correlation_of(noising_matrix: Any) -> DenseMatrix | Streamed:
    """The correlation that a user's `noising_matrix` stands for, checked."""
    if hasattr(noising_matrix, "init_multiply") and hasattr(noising_matrix, "multiply_next"):
        return Streamed(noising_matrix)
    if hasattr(noising_matrix, "inverse_as_streaming_matrix"):
        raise FixArgumentsError(
            f"noising_matrix is a {type(noising_matrix).__name__}, a strategy C. Noise is "
            "multiplied by its inverse: pass noising_matrix.inverse_as_streaming_matrix()."
        )
    try:
        found = np.asarray(noising_matrix)
        matrix = found.astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, jax.errors.TracerArrayConversionError) as error:
        raise FixArgumentsError(
            f"noising_matrix is a {type(noising_matrix).__name__}: pass C^-1 as a square array of "
            "real numbers, or as a StreamingMatrix."
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise FixArgumentsError(
            f"noising_matrix has shape {matrix.shape}: C^-1 is square, with a row for each step."
        )
    if not np.all(np.isfinite(matrix)):
        raise FixArgumentsError("noising_matrix holds NaN or infinity.")
    if np.any(np.triu(matrix, 1)):
        raise FixArgumentsError(
            "noising_matrix is not lower triangular: the noise of a step cannot depend on later "
            "steps. Was it transposed?"
        )
    empty = np.flatnonzero(np.diagonal(matrix) == 0)
    if empty.size:
        raise FixArgumentsError(
            f"noising_matrix has a zero on its diagonal, in row {empty[0]}: that step would get no "
            "noise of its own. C^-1 is invertible."
        )
    return DenseMatrix(matrix.astype(np.float64 if jax.config.jax_enable_x64 else np.float32))
