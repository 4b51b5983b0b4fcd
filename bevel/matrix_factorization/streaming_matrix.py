"""Lower triangular matrices that are applied to trees of arrays one step at a time (JAX).

Correlated noise is `C^-1 z`: row i depends on the draws of steps 0 to i only. A `StreamingMatrix`
keeps what it needs of earlier steps in a state, so the n x n matrix is never formed. Everything
here can be traced by JAX; the state is a tree of arrays that can be donated, sharded and saved.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.checks import in_one_line, shown
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_coefs, checked_length, checked_rows
from bevel.sharding.sharding_like import with_sharding_like
from bevel.sharding.types import explicit_sharding, manual_axes

PyTree = Any
State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class StreamingMatrix(Generic[State]):
    """A lower triangular matrix A as two functions: y[i] = sum of A[i, j] x[j] over j <= i.

    Each x[j] is a tree of arrays; all of them have the same structure and shapes. A acts on the
    steps and treats every element of the tree alike. If A is built from n numbers (learning rates,
    column norms), steps from n on give NaN, because no privacy was computed for them.

    Attributes:
      init_multiply: returns the state before step 0 from x[0] or its shapes
        (`jax.ShapeDtypeStruct`). Buffers are sharded like their leaf, with extra leading dimensions
        unsharded.
      multiply_next: `(x[i], state) -> (y[i], state)`, linear in x[i] and state. y has the shapes
        of x. Buffers, sums and y are float32, or float64 if x is; a matrix that only copies, such
        as the identity, keeps the dtype of x.

    `A @ B` is the product of two matrices, `A @ x` multiplies an array of shape (steps, ...), and
    `A * 2.0` scales every entry.
    """

    init_multiply: Callable[[PyTree], State]
    multiply_next: Callable[[PyTree, State], tuple[PyTree, State]]

    __array_ufunc__ = None  # makes `np.float64(2) * A` call A.__rmul__

    @classmethod
    def from_array_implementation(
        cls,
        init_multiply_fn: Callable[[jax.Array | jax.ShapeDtypeStruct], State],
        multiply_next_fn: Callable[[jax.Array, State], tuple[jax.Array, State]],
    ) -> "StreamingMatrix[Any]":
        """Lifts functions of one array to trees of arrays. Every leaf has a separate state.

        A state of a different tree, or of leaves with different shapes, is an error.
        """

        def init_multiply(tree: PyTree) -> PyTree:
            return jax.tree.map(init_multiply_fn, tree)

        def multiply_next(tree: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
            leaves = jax.tree.leaves(tree)
            treedef: Any = jax.tree.structure(tree)
            try:
                states = treedef.flatten_up_to(state)
            except (ValueError, TypeError, KeyError) as error:
                raise FixArgumentsError(
                    "the state belongs to another tree than the value: "
                    f"{in_one_line(error)} Create the state with init_multiply(value)."
                ) from error
            steps = [
                _next_of_leaf(multiply_next_fn, *one) for one in zip(leaves, states, strict=True)
            ]
            return treedef.unflatten(y for y, _ in steps), treedef.unflatten(s for _, s in steps)

        return cls(init_multiply, multiply_next)

    def materialize(self, n: int) -> jax.Array:
        """The first n rows and columns, as an (n, n) array of JAX's default float."""
        return multiply_array(self, jnp.eye(checked_rows(n)))

    def row_norms_squared(self, n: int, scan_fn: Any = jax.lax.scan) -> jax.Array:
        """Squared norms of the first n rows.

        Needs memory for one row of n columns and its state, not for n x n. `scan_fn` takes the
        arguments of `jax.lax.scan`; replace it, for instance, to save memory in differentiation.
        """
        n = checked_length(n)
        columns = jnp.arange(n)

        def step(state: Any, i: jax.Array) -> tuple[Any, jax.Array]:
            row, state = self.multiply_next((columns == i).astype(float), state)
            return state, jnp.sum(row * row)

        state = self.init_multiply(jnp.zeros(n))
        return scan_fn(step, state, columns)[1]

    def scale_rows_and_columns(
        self, row_scale: jax.Array | None = None, col_scale: jax.Array | None = None
    ) -> "StreamingMatrix[Any]":
        """diag(row_scale) A diag(col_scale): see the function of this name."""
        return scale_rows_and_columns(self, row_scale, col_scale)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, StreamingMatrix):
            return multiply_streaming_matrices(self, other)
        return multiply_array(self, other)

    def __mul__(self, scalar: Any) -> "StreamingMatrix[Any]":
        if np.ndim(scalar) != 0 or isinstance(scalar, StreamingMatrix):
            return NotImplemented

        def multiply_next(tree: PyTree, state: Any) -> tuple[PyTree, Any]:
            tree, state = self.multiply_next(tree, state)
            return jax.tree.map(lambda y: y * jnp.asarray(scalar).astype(y.dtype), tree), state

        return StreamingMatrix(self.init_multiply, multiply_next)

    __rmul__ = __mul__


def _next_of_leaf(
    multiply_next: Callable[[jax.Array, Any], tuple[jax.Array, Any]], x: jax.Array, state: Any
) -> tuple[jax.Array, Any]:
    """One step of one leaf. Raises if the state has another shape and would be broadcast."""
    x = jnp.asarray(x)
    y, next_state = multiply_next(x, state)
    shapes = [jax.tree.map(jnp.shape, s) for s in (state, next_state)]
    if y.shape != x.shape or shapes[0] != shapes[1]:
        raise FixArgumentsError(
            f"the value has shape {x.shape}, but its state has shapes {shapes[0]} and belongs to "
            "values of another shape. Create the state with init_multiply(value)."
        )
    return y, next_state


def buffers_like(x: Any, *lead: int) -> jax.Array:
    """Zeros of shape (*lead, *x.shape), float32 or wider, sharded like x with `lead` unsharded."""
    zeros = jnp.zeros_like(x, dtype=precision.accumulation_dtype(x.dtype))
    if isinstance(x, jax.core.Tracer) and not manual_axes() and explicit_sharding(x) is None:
        # On Auto axes under jit, only the compiler knows the sharding.
        zeros = with_sharding_like(zeros, x)
    return jnp.broadcast_to(zeros, (*lead, *x.shape)) if lead else zeros


def widened(x: jax.Array) -> jax.Array:
    """Casts `x` to the dtype in which it is scaled and summed."""
    return x.astype(precision.accumulation_dtype(x.dtype))


def scale_rows_and_columns(
    matrix: StreamingMatrix[Any],
    row_scale: jax.Array | None = None,
    col_scale: jax.Array | None = None,
) -> StreamingMatrix[Any]:
    """diag(row_scale) A diag(col_scale): entry (i, j) is multiplied by both scales.

    Scales have shape (n,). Later steps are multiplied by the last entry, as for a learning rate
    that stays where its schedule ends. If steps from n on must not happen, because privacy was
    computed for n steps, multiply by `diagonal(scale)`, which gives NaN for them.
    """
    if row_scale is not None:
        matrix = _scaled_steps(checked_coefs(row_scale, "row_scale"), mode="clip") @ matrix
    if col_scale is not None:
        matrix = matrix @ _scaled_steps(checked_coefs(col_scale, "col_scale"), mode="clip")
    return matrix


def multiply_array(A: StreamingMatrix[Any], x: jax.Array) -> jax.Array:
    """A x, for x of shape (steps, ...): A acts on the leading axis."""
    x = jnp.asarray(x)
    if x.ndim == 0:
        raise FixArgumentsError("A @ x: x is a scalar. Pass an array of shape (steps, ...).")

    def step(state: Any, row: jax.Array) -> tuple[Any, jax.Array]:
        y, state = A.multiply_next(row, state)
        return state, y

    state = A.init_multiply(jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    return jax.lax.scan(step, state, x)[1]


def multiply_streaming_matrices(
    A: StreamingMatrix[Any], B: StreamingMatrix[Any]
) -> StreamingMatrix[Any]:
    """A B: each step passes through B, then through A."""

    def init_multiply(tree: PyTree) -> tuple[Any, Any]:
        return A.init_multiply(tree), B.init_multiply(tree)

    def multiply_next(tree: PyTree, state: tuple[Any, Any]) -> tuple[PyTree, tuple[Any, Any]]:
        tree, state_b = B.multiply_next(tree, state[1])
        tree, state_a = A.multiply_next(tree, state[0])
        return tree, (state_a, state_b)

    return StreamingMatrix(init_multiply, multiply_next)


def identity() -> StreamingMatrix[Any]:
    """The identity, without state."""
    return StreamingMatrix.from_array_implementation(lambda x: (), lambda x, state: (x, state))


def prefix_sum() -> StreamingMatrix[Any]:
    """Ones on and below the diagonal: y[i] is the sum of x[0] to x[i]."""

    def multiply_next(x: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = total + widened(x)
        return total, total

    return StreamingMatrix.from_array_implementation(buffers_like, multiply_next)


def diagonal(diag: jax.Array) -> StreamingMatrix[Any]:
    """diag(d) for d of shape (n,). Steps from n on give NaN."""
    return _scaled_steps(checked_coefs(diag, "diag"), mode="fill", fill_value=math.nan)


def _scaled_steps(diag: jax.Array, **past_the_end: Any) -> StreamingMatrix[Any]:
    """diag(d), where the arguments of `jnp.ndarray.at[].get` say what d is past its end."""

    def multiply_next(tree: PyTree, i: jax.Array) -> tuple[PyTree, jax.Array]:
        def scaled(x: jax.Array) -> jax.Array:
            x = widened(jnp.asarray(x))
            return x * jnp.asarray(diag, x.dtype).at[i].get(**past_the_end)

        return jax.tree.map(scaled, tree), i + 1

    return StreamingMatrix(lambda tree: jnp.zeros((), jnp.int32), multiply_next)


def momentum_sgd_matrix(
    momentum: float = 0, learning_rates: jax.Array | None = None
) -> StreamingMatrix[Any]:
    """The workload A of SGD with momentum: parameters after step i are theta_0 - (A g)[i].

    v[i] = momentum v[i-1] + g[i], and A g sums learning_rates[i] v[i]. With momentum 0 and no
    learning rates this is `prefix_sum()`. Steps past the end of learning_rates give NaN.
    """
    if not 0 <= momentum <= 1:
        raise FixArgumentsError(f"momentum={shown(momentum)}: pass a number from 0 to 1.")

    def next_velocity(g: jax.Array, velocity: jax.Array) -> tuple[jax.Array, jax.Array]:
        velocity = jnp.asarray(momentum, velocity.dtype) * velocity + widened(g)
        return velocity, velocity

    velocity = StreamingMatrix.from_array_implementation(buffers_like, next_velocity)
    if learning_rates is not None:
        velocity = diagonal(learning_rates) @ velocity
    return prefix_sum() @ velocity
