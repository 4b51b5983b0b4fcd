"""`BoundedSensitivityCallable`: a sum over examples, and the bound on each contribution."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.checks import as_float, flag, function, instance, is_real, shown, whole_number
from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

PyTree = Any


class Aux(NamedTuple):
    """Per-example outputs beside the sum: each has a leading batch axis, or is None by default.

    They are *not* private: norms and values of single examples must not leave the trainer.
    """

    values: jax.Array | None = None
    grad_norms: jax.Array | None = None
    aux: PyTree = None


AuxiliaryOutput = Aux

# Cancellation inside one example's gradient beyond which its norm is deliberately overstated:
# see norms/outer_products.py. It caps how much larger than the clip norm the summed terms can be.
MAX_CANCELLATION = 128


@dataclasses.dataclass(eq=False)
class TracedProgram:
    """What is known of the function's program since it was last traced."""

    rows: int | None = None  # most rows with which one example enters one tapped product
    loss: Any = None  # the jaxpr of the function for one example
    coupling: Any = None  # the `Coupling` of a loss that couples examples

    def enters_with(self, rows: int) -> None:
        self.rows = max(rows, self.rows or 1)


def checked_dtype(dtype: Any) -> Any:
    """The dtype of a sum of clipped gradients, which must have the range of float32."""
    if dtype is None:
        return None
    try:
        wanted = jnp.dtype(dtype)
    except Exception as error:  # NumPy reads attributes and strings of any kind
        raise FixArgumentsError(f"dtype={shown(dtype)}: pass a dtype, such as float32.") from error
    if wanted not in (jnp.dtype(d) for d in ("float32", "float64", "bfloat16")):
        raise FixArgumentsError(
            f"dtype={wanted.name}: a sum of clipped gradients may leave its range. Use float32, "
            "float64 or bfloat16."
        )
    if wanted == jnp.dtype("float64") and not jax.config.jax_enable_x64:
        raise FixArgumentsError("dtype=float64 needs jax.config.update('jax_enable_x64', True).")
    return wanted


@dataclasses.dataclass(frozen=True)
class BoundedSensitivityCallable:
    """A function that sums clipped contributions, and the L2 bound of each.

    Formal guarantee: for batches that differ in one example, the exact sums of the contributions
    differ by at most `sensitivity(relation)` in L2 norm. The contribution is bounded as it enters
    the sum: rounding of its norm, of the coefficient and of their product is covered by shrinking
    the coefficient. The rounding of the sum over the batch is excluded; `rounding_bound` states it.

    | example                     | contribution                                     |
    | --------------------------- | ------------------------------------------------ |
    | padding                     | zero, whatever it holds (NaN and inf included)   |
    | non-finite gradient or norm | zero with `nan_safe=True`                        |
    | norm below the clip norm    | its gradient, unchanged                          |
    | zero gradient               | zero                                             |
    """

    bounded_sensitivity_fun: Callable[..., Any]
    l2_norm_bound: float
    has_aux: bool
    result_dtype: jax.typing.DTypeLike | None = None
    exact: bool = False
    program: "TracedProgram" = dataclasses.field(default_factory=lambda: TracedProgram(rows=1))
    task: Any = dataclasses.field(default=None, repr=False, compare=False)  # for `explain`

    def __post_init__(self) -> None:
        function("bounded_sensitivity_fun", self.bounded_sensitivity_fun)
        bound = self.l2_norm_bound
        if not (is_real(bound) and as_float(bound) >= 0):
            raise FixArgumentsError(
                f"l2_norm_bound={shown(bound)}: pass the L2 bound of one example's contribution."
            )
        flag("has_aux", self.has_aux)
        flag("exact", self.exact)
        checked_dtype(self.result_dtype)
        instance("program", self.program, TracedProgram, "a TracedProgram, or leave it out")

    def __call__(
        self, *args: Any, is_padding_example: jax.Array | None = None, **kwargs: Any
    ) -> Any:
        return self.bounded_sensitivity_fun(*args, is_padding_example=is_padding_example, **kwargs)

    def sensitivity(self, neighboring_relation: "str | NeighboringRelation | None" = None) -> float:
        """L2 sensitivity of the exact sum under a `dp_accounting.NeighboringRelation`.

        The bound itself for ADD_OR_REMOVE_ONE and REPLACE_SPECIAL (the default), twice the bound
        for REPLACE_ONE. Excludes the rounding of the sum: add `rounding_bound(batch_size)`.
        """
        name = getattr(neighboring_relation, "name", "REPLACE_SPECIAL")
        if isinstance(neighboring_relation, str):
            name = neighboring_relation
        elif neighboring_relation is not None and not hasattr(neighboring_relation, "name"):
            name = ""
        factors = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_SPECIAL": 1, "REPLACE_ONE": 2}
        if not isinstance(name, str) or name not in factors:
            raise FixArgumentsError(
                f"neighboring_relation={shown(neighboring_relation)}: pass one of "
                f"dp_accounting.NeighboringRelation.{{{', '.join(factors)}}}."
            )
        return factors[name] * self.l2_norm_bound

    def rounding_bound(self, batch_size: int, rows_per_example: int | None = None) -> float:
        """Bounds the L2 distance between the returned sum and the exact sum of the contributions.

        Holds for every order of summation, so for every mesh and microbatch size. Two neighbouring
        outputs of one batch shape (a missing example is a padding row) differ by at most
        `sensitivity(relation) + 2 * rounding_bound(batch_size)`.

        Args:
          batch_size: number of examples, padding included.
          rows_per_example: most rows (positions of a sequence, say) with which one example enters
            a matrix product whose norm comes from a Gram matrix. Known once the function has been
            called. With 1, the bound is that of adding `batch_size` vectors.
        """
        whole_number("batch_size", batch_size, 0)
        if rows_per_example is not None:
            whole_number("rows_per_example", rows_per_example)
        if self.exact:
            return 0.0
        rows = self.program.rows if rows_per_example is None else rows_per_example
        if rows is None:
            raise FixArgumentsError(
                "the rounding of the sum depends on the program, which is not known yet: call the "
                "function once, or pass rows_per_example (1 if no example has several positions)."
            )
        cancellation = 1 if rows == 1 else MAX_CANCELLATION
        # Matrix units truncate where they add: an addition counts as two roundings.
        terms = 2 * (batch_size * rows + 8)
        bound = precision.rounding_growth(terms) * cancellation
        if self.result_dtype is not None:
            bound += (1 + bound) * precision.unit_roundoff(self.result_dtype)
        return bound * batch_size * self.l2_norm_bound
