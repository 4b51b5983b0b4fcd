"""The loss of a BLT: error times sensitivity, plus penalties that keep it valid."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bevel.checks import one_of, whole_number
from bevel.matrix_factorization import sensitivity
from bevel.matrix_factorization.buffered_toeplitz import closed_forms
from bevel.matrix_factorization.buffered_toeplitz.blt import BufferedToeplitz, check_float64_dtype
from bevel.matrix_factorization.checks import checked_length
from bevel.matrix_factorization.optimization import namespace


@dataclasses.dataclass(frozen=True)
class LossFn:
    """Squared error at equal privacy, for n steps and given participations.

    Attributes:
      error_for_inv: squared error as a function of C^-1, for noise of variance 1.
      sensitivity_squared: squared sensitivity as a function of C.
      n, min_sep, max_participations: the setting that the two functions are for.
      penalty_strength: weight of the penalties. They are logarithmic barriers, so a small weight is
        enough.
      penalty_multipliers: further weights, by the names in `compute_penalties`.
      max_second_coef: bound on the first coefficient below the diagonal. Keep it at most 1, so that
        coefficients do not grow.
      min_theta_gap: minimum distance between decays.
    """

    error_for_inv: Callable[[BufferedToeplitz], Any]
    sensitivity_squared: Callable[[BufferedToeplitz], Any]
    n: int
    min_sep: int
    max_participations: int
    penalty_strength: float = 1e-8
    penalty_multipliers: dict[str, float] = dataclasses.field(default_factory=dict)
    max_second_coef: float = 1.0
    min_theta_gap: float = 1e-12

    @classmethod
    def build_closed_form_single_participation(cls, n: int, **kwargs: Any) -> "LossFn":
        """The loss for the largest error if every example takes part once."""
        return cls.build_min_sep(n, min_sep=n, max_participations=1, **kwargs)

    @classmethod
    def build_min_sep(
        cls,
        n: int,
        error: str = "max",
        min_sep: int = 1,
        max_participations: int | None = None,
        **kwargs: Any,
    ) -> "LossFn":
        """The loss for 'max' or 'mean' error if an example's steps are `min_sep` or more apart."""
        errors = {"max": closed_forms.max_error, "mean": closed_forms.mean_error}
        one_of("error", error, ("max", "mean"))
        times = sensitivity.minsep_true_max_participations(n, min_sep, max_participations)
        checked_length(times, "max_participations")  # without any, every matrix is optimal

        def sensitivity_squared(blt: BufferedToeplitz) -> Any:
            if times == 1:
                return closed_forms.sensitivity_squared(blt, n)
            return closed_forms.minsep_sensitivity_squared(blt, n, min_sep, times)

        return cls(
            error_for_inv=lambda inv_blt: errors[error](inv_blt, n),
            sensitivity_squared=sensitivity_squared,
            n=whole_number("n", n),
            min_sep=min_sep,
            max_participations=times,
            **kwargs,
        )

    def compute_penalties(
        self, blt: BufferedToeplitz, inv_blt: BufferedToeplitz
    ) -> dict[str, jax.Array]:
        """Logarithmic barriers by name: -log(distance to a constraint), NaN if it is violated.

        Both BLTs must have their decays in descending order.
        """
        (theta, omega), (theta_hat, omega_hat) = blt.as_floats(), inv_blt.as_floats()
        xp = namespace(theta, omega, theta_hat, omega_hat)
        distances = {
            "buf_decay_positive": theta,
            "buf_decay_below_one": 1 - theta,
            "buf_decay_gap": -xp.diff(theta) - self.min_theta_gap,
            "output_scale_positive": omega,
            "second_coef": self.max_second_coef - xp.sum(omega),
            "inverse_buf_decay_above_minus_one": 1 + theta_hat,
            "inverse_buf_decay_below_one": 1 - theta_hat,
            "inverse_buf_decay_gap": -xp.diff(theta_hat) - self.min_theta_gap,
            "inverse_output_scale_negative": -omega_hat,
        }
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: xp.sum(-xp.log(distance)) for name, distance in distances.items()}

    def penalized_loss(
        self,
        blt: BufferedToeplitz,
        inv_blt: BufferedToeplitz,
        normalize_by_approx_optimal_loss: bool = True,
    ) -> jax.Array:
        """The loss plus penalties. By default the loss is divided by `approx_optimal_loss`."""
        loss = self.error_for_inv(inv_blt) * self.sensitivity_squared(blt)
        if normalize_by_approx_optimal_loss:
            loss = loss / self.approx_optimal_loss
        for name, penalty in self.compute_penalties(blt, inv_blt).items():
            loss += self.penalty_strength * self.penalty_multipliers.get(name, 1.0) * penalty
        return loss

    def loss(self, blt: BufferedToeplitz, skip_checks: bool = False) -> jax.Array:
        """Squared error times squared sensitivity of a BLT. Requires float64 unless skip_checks."""
        if not skip_checks:
            check_float64_dtype(blt)
        inverse = blt.inverse(skip_checks=skip_checks)
        return self.error_for_inv(inverse) * self.sensitivity_squared(blt)

    @property
    def approx_optimal_loss(self) -> float:
        """Approximate loss of the optimal Toeplitz factor, times the number of participations."""
        root = (math.log(self.n) + 0.5772 + math.log(16)) / math.pi
        return root**2 * self.max_participations
