"""What an audit found, and its text."""

import dataclasses

import numpy as np

from bevel.auditing.arguments import Floats


@dataclasses.dataclass(frozen=True, eq=False)
class AuditResult:
    """The result of `bevel.auditing.audit`.

    Attributes:
      promised_epsilon, delta: the guarantee of the plan.
      epsilon: the measured lower bound at delta. If training is as private as Gaussian noise can
        make it, the bound exceeds the true epsilon with at most the probability `significance`.
      limit: an honest run exceeds this bound with at most the probability `significance`. It is the
        promised epsilon, or more if the privacy of the plan is not that of Gaussian noise.
      significance: the probability with which the bound may be wrong.
      strongest: the highest bound that so many canaries can give. If it is not above the promise,
        this audit cannot fail.
      scores: one for each canary, of all runs; a higher score speaks for held in.
      held_in: the coins of the canaries.
      attack: what the attacker saw: 'every step', or 'last model'.
      attacked: what the audit would notice, in words.
      not_attacked: what it would not notice, in words.
    """

    promised_epsilon: float
    delta: float
    epsilon: float
    limit: float
    significance: float
    strongest: float
    scores: Floats = dataclasses.field(repr=False)
    held_in: np.ndarray = dataclasses.field(repr=False)
    attack: str
    attacked: tuple[str, ...] = ()
    not_attacked: tuple[str, ...] = ()

    @property
    def canaries(self) -> int:
        return len(self.scores)

    @property
    def passed(self) -> bool:
        """False if the run has lost more privacy than it promised. True does not prove the promise.

        The audit of a correct program fails with at most the probability `significance`.
        """
        return self.epsilon <= self.limit

    def __str__(self) -> str:
        confidence = f"{1 - self.significance:.3g}".removeprefix("0.").ljust(2, "0")
        verdict = "PASSED: the attack found no violation, which does not prove that there is none"
        if not self.passed:
            verdict = "FAILED: the run loses more privacy than it promises"
        rows = [
            ("promised", f"epsilon {self.promised_epsilon:.3g} at delta {self.delta:g}"),
            ("measured", f"epsilon at least {self.epsilon:.3g}, with {confidence}% confidence"),
            ("canaries", f"{self.canaries}, of which {int(self.held_in.sum())} are held in"),
        ]
        if self.strongest <= self.limit:
            most = f"so many canaries show at most epsilon {self.strongest:.3g}: use more"
            rows.append(("too few", most))
        rows += [("attacked", line) for line in (f"{self.attack}", *self.attacked)]
        rows += [("not attacked", line) for line in self.not_attacked]
        seen = ""
        lines = []
        for name, text in rows:
            lines.append(f"  {'' if name == seen else name:<14}{text}")
            seen = name
        return "\n".join([f"audit {verdict}", *lines])
