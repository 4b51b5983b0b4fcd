"""The base class of configs: calibrates a mechanism to a budget and makes the plan."""

import abc
import dataclasses
from typing import Protocol, Self

from dp_accounting import NeighboringRelation

from bevel.accounting import AccountantFn, Budget, MonteCarlo, calibrate_noise_multiplier
from bevel.accounting.arguments import check_budget, relation_of
from bevel.checks import flag, instance, positive_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.adaptive_clipping import AdaptiveClipping
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.fingerprint import fingerprint
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.performance import PerformanceFlags, checked_flags
from bevel.execution_plan.plan import DPExecutionPlan
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.execution_plan.privacy_unit import Unit, UnitName


class ExecutionPlanConfig(Protocol):
    """A config: makes a plan."""

    def make(self, performance_flags: PerformanceFlags | None = None) -> DPExecutionPlan: ...


@dataclasses.dataclass(frozen=True)
class Target:
    """The budget and the mechanism for which a noise multiplier was calibrated."""

    epsilon: float
    delta: float
    mechanism: str  # the fingerprint of the mechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateConfig(abc.ABC):
    """Options of every private mechanism. All of them change the guarantee or the released numbers.

    Attributes:
      noise_multiplier: the standard deviation of the noise divided by the bound of *one record's*
        contribution (times the sensitivity of C, for correlated noise), under every relation.
        `calibrate` sets it.
      l2_clip_norm: the clip norm of one record's gradient; the initial one for adaptive clipping.
      rescale_to_unit_norm: divide gradients by the clip norm, so that you need not change the
        learning rate with it.
      unit: 'example' or 'user': what is protected, sampled, clipped and counted.
      examples_per_user_per_batch, shuffle_per_user: see `UserSelectionStrategy`, for unit 'user'.
      neighboring_relation: a `dp_accounting.NeighboringRelation` or its name. A relation without a
        proof for the sampler is an error.
      adaptive_clipping: adapts the clip norm to a quantile of the gradient norms, privately.
      target: the calibrated budget, set by `calibrate`.
    """

    noise_multiplier: float | None = None
    l2_clip_norm: float = 1.0
    rescale_to_unit_norm: bool = True
    unit: UnitName = "example"
    examples_per_user_per_batch: int | None = None
    shuffle_per_user: bool = False
    neighboring_relation: str | NeighboringRelation = "ADD_OR_REMOVE_ONE"
    adaptive_clipping: AdaptiveClipping | None = None
    target: Target | None = None

    @abc.abstractmethod
    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the sampler and the noise, with their event."""

    @abc.abstractmethod
    def divisor(self) -> float:
        """Returns the divisor of the sum."""

    @abc.abstractmethod
    def batch_size(self) -> float | None:
        """Returns the mean number of units in a batch, or None if it is not known."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "neighboring_relation", relation_of(self.neighboring_relation).name
        )
        if self.noise_multiplier is not None:
            positive_number("noise_multiplier", self.noise_multiplier, "or use NonPrivateConfig")
        positive_number("l2_clip_norm", self.l2_clip_norm, "the largest norm of a gradient")
        flag("rescale_to_unit_norm", self.rescale_to_unit_norm)
        instance("target", self.target, Target | None, "target=None, and call calibrate")
        self.privacy_unit()
        # Raises for an invalid sampler, and for a relation without a proof for it.
        self.mechanism(self.noise_multiplier or 1.0).event_after(1)
        adaptive = self.adaptive_clipping
        hint = "AdaptiveClipping(...), or None"
        instance("adaptive_clipping", adaptive, AdaptiveClipping | None, hint)
        if adaptive is not None and self.batch_size() is None:
            raise FixArgumentsError(
                "adaptive_clipping divides a count by the expected batch size, which is not known: "
                "pass num_examples."
            )

    def privacy_unit(self) -> Unit:
        return Unit(self.unit, self.examples_per_user_per_batch, self.shuffle_per_user)

    def calibrate(
        self,
        *,
        epsilon: float,
        delta: float,
        tol: float | None = None,
        accountant_fn: AccountantFn | None = None,
        monte_carlo: MonteCarlo | None = None,
    ) -> Self:
        """Returns the config with the smallest noise multiplier that is within the budget.

        Args:
          epsilon, delta: the budget. A delta above one over the number of units gives a warning.
          tol: how far below `epsilon` the result may be, 1e-3 by default.
          accountant_fn: makes an accountant of dp-accounting; by default the tightest one that
            supports the event.
          monte_carlo: options of Monte Carlo sampling, for events that are bounded by it.
        """
        check_budget(epsilon, delta, self.mechanism(1.0).num_units)
        noise = calibrate_noise_multiplier(
            lambda noise: self.mechanism(noise).event_after(self.mechanism(noise).iterations),
            epsilon=epsilon,
            delta=delta,
            neighboring_relation=self.neighboring_relation,
            accountant_fn=accountant_fn,
            monte_carlo=monte_carlo,
            tolerance=1e-3 if tol is None else tol,
        )
        target = Target(float(epsilon), float(delta), fingerprint(self.mechanism(noise)))
        return dataclasses.replace(self, noise_multiplier=noise, target=target)

    def make(
        self,
        performance_flags: PerformanceFlags | None = None,
        *,
        secrets: PlanSecrets | None = None,
    ) -> DPExecutionPlan:
        """Makes the plan: its sampler, clipping, noise and event all follow from this config.

        Args:
          performance_flags: options that do not change the guarantee.
          secrets: the secrets of a run to resume; None draws new ones from the operating system.
        """
        if self.noise_multiplier is None:
            raise FixArgumentsError(
                "noise_multiplier is not set: call calibrate(epsilon=..., delta=...) first, or "
                "pass noise_multiplier."
            )
        mechanism = self.mechanism(float(self.noise_multiplier))
        size, flags = self.batch_size(), checked_flags(performance_flags)
        return DPExecutionPlan(
            mechanism,
            ClipOptions(
                float(self.l2_clip_norm),
                bool(self.rescale_to_unit_norm),
                float(self.divisor()),
                self.adaptive_clipping,
            ),
            self.privacy_unit(),
            None if size is None else float(size),
            budget=self.checked_budget(mechanism),
            flags=flags,
            secrets=flags.secrets(secrets),
        )

    def checked_budget(self, mechanism: Mechanism) -> Budget | None:
        """Returns the calibrated budget; raises if the mechanism changed after calibration."""
        if self.target is None:
            return None
        if self.target.mechanism != fingerprint(mechanism):
            raise FixArgumentsError(
                f"this config was calibrated for epsilon {self.target.epsilon:g} at delta "
                f"{self.target.delta:g}, but its mechanism changed since then. Call calibrate "
                "again, or pass target=None to make a plan without a budget."
            )
        return Budget(self.target.epsilon, self.target.delta)
