"""What an audit found: its text, its record and its picture."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bevel.auditing.arguments import Floats
from bevel.auditing.audit_figures import histogram, promise, roc
from bevel.auditing.audit_plot import plot_audit
from bevel.auditing.released_files import Trace
from bevel.auditing.sensitivity_result import SensitivityResult
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan
from bevel.training.folder import AUDIT, PRIVATE, make_private_folder, write_atomically


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
      findings: errors that were found in another way than by scores, in words.
      traces: what `released_traces` found in the files of the audited run, if it has a folder.
      sensitivity: what `check_sensitivity` found, if it was run.
      plan: the plan of the audited trainer, for its trade-off curve.

    Scores, bound and pictures are private. The attacker of 'every step' knows what the other
    examples contributed to each sum, so the promised epsilon does not cover what it shows of them.
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
    findings: tuple[str, ...] = ()
    traces: tuple[Trace, ...] = ()
    sensitivity: SensitivityResult | None = None
    plan: DPExecutionPlan | None = dataclasses.field(default=None, repr=False)

    @property
    def canaries(self) -> int:
        return len(self.scores)

    @property
    def passed(self) -> bool:
        """False if the run has lost more privacy than it promised. True does not prove the promise.

        Repeated noise, traces in released files and a violated sensitivity also fail the audit. The
        bound of a correct program fails with at most the probability `significance`.
        """
        measured = self.sensitivity is None or self.sensitivity.passed
        return self.epsilon <= self.limit and not self.findings and not self.traces and measured

    def to_dict(self) -> dict[str, Any]:
        """The record of the audit, in numbers, text, lists and dicts that JSON can hold.

        | key                              | what it is                                          |
        | -------------------------------- | --------------------------------------------------- |
        | `promised`, `delta`              | the guarantee                                       |
        | `bound`, `significance`, `limit` | the lower bound on epsilon, and what it must exceed |
        | `attack`, `canaries`, `held_in`  | what was seen, and the numbers of canaries          |
        | `passed`                         | whether nothing was found                           |
        | `attacked`, `not_attacked`       | in words                                            |
        | `histogram`                      | `edges`, and counts `held_in` and `held_out`        |
        | `roc`, `promise`                 | `fpr`, `tpr`: of the attack, and the most allowed   |
        | `findings`, `traces`             | what was found in another way than by scores        |
        | `sensitivity`                    | `SensitivityResult.to_dict`, or null                |

        A number that is not finite is null. `promise` is the trade-off curve of the plan, which
        takes a few seconds.
        """
        return {
            "promised": _finite(self.promised_epsilon),
            "delta": self.delta,
            "bound": _finite(self.epsilon),
            "limit": _finite(self.limit),
            "significance": self.significance,
            "strongest": _finite(self.strongest),
            "attack": self.attack,
            "canaries": self.canaries,
            "held_in": int(self.held_in.sum()),
            "passed": self.passed,
            "attacked": list(self.attacked),
            "not_attacked": list(self.not_attacked),
            "histogram": histogram(self.scores, self.held_in),
            "roc": roc(self.scores, self.held_in),
            "promise": self._promise,
            "findings": list(self.findings),
            "traces": [dataclasses.asdict(trace) for trace in self.traces],
            "sensitivity": _finite(self.sensitivity and self.sensitivity.to_dict()),
        }

    @functools.cached_property
    def _promise(self) -> dict[str, list[float]]:
        return promise(self.plan, self.promised_epsilon, self.delta)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the record to `private/audit.json` of a run folder, atomically and with mode 0600.

        Everything in it is private: never copy it to `released/`.
        """
        private = Path(folder) / PRIVATE
        private.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(private)
        text = json.dumps(self.to_dict(), allow_nan=False) + "\n"
        write_atomically(private / AUDIT, text, private=True)
        return private / AUDIT

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws the scores, and the ROC against the guarantee, to an .svg, .png or .pdf file.

        The picture is private, like the scores.
        """
        return plot_audit(self.to_dict(), path)

    def __str__(self) -> str:
        confidence = f"{1 - self.significance:.3g}".removeprefix("0.").ljust(2, "0")
        verdict = "PASSED: the attack found no violation, which does not prove that there is none"
        if self.epsilon > self.limit:
            verdict = "FAILED: the run loses more privacy than it promises"
        elif self.findings:
            verdict = "FAILED: the noise repeats itself"
        elif self.traces:
            verdict = "FAILED: there are private values in released files"
        elif not self.passed:
            verdict = "FAILED: contributions to the clipped sum are not bounded"
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
        rows += [("found", finding) for finding in self.findings]
        rows += [("traces", str(trace)) for trace in self.traces]
        seen = ""
        lines = []
        for name, text in rows:
            lines.append(f"  {'' if name == seen else name:<14}{text}")
            seen = name
        if self.sensitivity is not None:
            lines.append(str(self.sensitivity))
        return "\n".join([f"audit {verdict}", *lines])


def read_audit(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Returns the record of an audited run: see `AuditResult.to_dict`.

    Args:
      folder: the folder of the run, with both halves.
    """
    path = Path(folder) / PRIVATE / AUDIT
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise FixArgumentsError(
            f"{folder} has no {PRIVATE}/{AUDIT}: pass the folder of an audited run, such as "
            "runs/digits-audit."
        ) from None
    except (ValueError, TypeError) as error:
        raise FixArgumentsError(f"{path} is not the record of an audit: {error}.") from None


def _finite(value: Any) -> Any:
    """The value with None for all numbers that are not finite, which JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
