"""A sum over examples that travels with the bound of one example's contribution."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from bevel import precision
from bevel.errors import FixArgumentsError


class Aux(NamedTuple):
    """Per-example outputs beside the sum: each has a leading batch axis, or is None if not wanted.

    They are *not* private: norms and values of single examples must not leave the trainer.
    """

    values: Any = None
    grad_norms: Any = None
    aux: Any = None


AuxiliaryOutput = Aux

# Cancellation inside one example's gradient beyond which its norm is deliberately overstated:
# see norms/dense.py. It caps how much larger than the clip norm the summed terms can be.
MAX_CANCELLATION = 128


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
    result_dtype: Any = None
    exact: bool = False

    def __call__(
        self, *args: Any, is_padding_example: jax.Array | None = None, **kwargs: Any
    ) -> Any:
        return self.bounded_sensitivity_fun(*args, is_padding_example=is_padding_example, **kwargs)

    def sensitivity(self, neighboring_relation: Any = None) -> float:
        """L2 sensitivity of the exact sum under a `dp_accounting.NeighboringRelation`.

        The bound itself for ADD_OR_REMOVE_ONE and REPLACE_SPECIAL (the default), twice the bound
        for REPLACE_ONE. Excludes the rounding of the sum: add `rounding_bound(batch_size)`.
        """
        name = getattr(neighboring_relation, "name", "REPLACE_SPECIAL")
        if neighboring_relation is not None and not hasattr(neighboring_relation, "name"):
            name = str(neighboring_relation)
        factors = {"ADD_OR_REMOVE_ONE": 1, "REPLACE_SPECIAL": 1, "REPLACE_ONE": 2}
        if name not in factors:
            raise FixArgumentsError(
                f"neighboring_relation={neighboring_relation!r}: pass one of "
                f"dp_accounting.NeighboringRelation.{{{', '.join(factors)}}}."
            )
        return factors[name] * self.l2_norm_bound

    def rounding_bound(self, batch_size: int, rows_per_example: int = 1) -> float:
        """L2 distance between the returned sum and the exact sum of the contributions, at most.

        Holds for every order of summation, so for every mesh and microbatch size. Two neighbouring
        outputs differ by at most `sensitivity(relation) + 2 * rounding_bound(batch_size)`.

        Args:
          batch_size: number of examples, padding included.
          rows_per_example: most rows (positions of a sequence, say) with which one example enters
            one matrix product. With 1, the bound is that of adding `batch_size` vectors.
        """
        if self.exact:
            return 0.0
        cancellation = 1 if rows_per_example == 1 else MAX_CANCELLATION
        terms = batch_size * rows_per_example + 2
        bound = precision.rounding_growth(terms) * cancellation
        if self.result_dtype is not None:
            bound += (1 + bound) * precision.unit_roundoff(self.result_dtype)
        return bound * batch_size * self.l2_norm_bound
