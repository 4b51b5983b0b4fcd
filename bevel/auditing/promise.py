"""What a plan promises: its epsilon, and the error rates that it allows an attacker."""

import math

import numpy as np
from scipy import special

from bevel.accounting import trade_off_curve
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.auditing.arguments import Floats
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.auditing.independent_units import sampler_of
from bevel.auditing.scores import strategy_matrix
from bevel.batch_selection import BallsInBinsSampling
from bevel.checks import is_real, shown
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan

_TOLERANCE = 1e-6


def promised_delta(plan: DPExecutionPlan, delta: float | None) -> float:
    """The delta of the promise: the given one, or that of the budget."""
    if plan.mechanism.noise_multiplier is None:
        raise FixArgumentsError(
            "the plan adds no noise, so it promises nothing that an audit could refute: audit a "
            "private config, such as a calibrated DPSGDConfig."
        )
    if delta is None:
        if plan.budget is None:
            raise FixArgumentsError(
                "the plan has no budget to take delta from: pass delta=..., such as 1e-5."
            )
        return plan.budget.delta
    if not (is_real(delta) and 0 < delta < 1):
        raise FixArgumentsError(
            f"delta={shown(delta)}: pass a number between 0 and 1, both excluded. Gaussian noise "
            "has no finite epsilon at delta 0, and delta 1 promises nothing."
        )
    return float(delta)


def promised_epsilon(plan: DPExecutionPlan, delta: float) -> float:
    """The epsilon of the budget at its delta, otherwise that of the plan."""
    if plan.budget is not None and plan.budget.delta == delta:
        return plan.budget.epsilon
    return plan.epsilon(delta=delta)


def limit_of(plan: DPExecutionPlan, delta: float, promised: float, bound: float) -> float:
    """What a bound must exceed to refute the promise."""
    if bound <= promised:  # the envelope takes seconds, and is not needed
        return promised
    return max(promised, gaussian_envelope(plan, delta))


def gaussian_envelope(plan: DPExecutionPlan, delta: float) -> float:
    """The epsilon of the Gaussian mechanism whose trade-off curve lies just above the plan's.

    The bound of an audit is about Gaussian mechanisms. A plan of few steps with rare uses is less
    private at some error rates than the Gaussian mechanism with its epsilon at this delta.
    """
    if isinstance(plan.dp_event, MixtureDpEvent):
        return gaussian_epsilon(unamplified_mu(plan), delta, _TOLERANCE)
    fpr, tpr = trade_off_curve(plan.dp_event, neighboring_relation=plan.neighboring_relation)
    inside = (fpr > 0) & (tpr < 1)
    mu = float(np.max(special.ndtri(tpr[inside]) - special.ndtri(fpr[inside]), initial=0.0))
    return gaussian_epsilon(mu, delta, _TOLERANCE)


def unamplified_mu(plan: DPExecutionPlan) -> float:
    """The mu of a plan with Monte Carlo accounting for somebody who knows when a unit is used.

    The outputs are a mixture over the patterns of use. No mixture is easier to tell from the
    outputs without the unit than its worst pattern, which is a Gaussian mechanism. So the trade-off
    curve of that mechanism lies above that of the plan, and computing it takes no samples.
    """
    sampler, steps = sampler_of(plan), plan.iterations
    size = plan.l2_norm_bound / plan.noise_stddev
    if not isinstance(sampler, BallsInBinsSampling):  # independent noise, so all patterns are equal
        return size * math.sqrt(sampler.participation().max_participations)
    bins = np.arange(steps)[:, None] % sampler.cycle_length == np.arange(sampler.cycle_length)
    signals = strategy_matrix(plan, steps) @ bins.astype(float)
    return size * float(np.linalg.norm(signals, axis=0).max())


def allowed_tpr(plan: DPExecutionPlan | None, promised: float, delta: float, fpr: Floats) -> Floats:
    """The highest true-positive rate that the guarantee allows at each false-positive rate.

    This is the trade-off curve of the plan. With Monte Carlo accounting it is the least of two
    bounds that need no samples: that of `unamplified_mu`, and that of (promised, delta). Without a
    plan it is the latter alone.
    """
    if plan is not None and not isinstance(plan.dp_event, MixtureDpEvent):
        relation = plan.neighboring_relation
        return trade_off_curve(plan.dp_event, neighboring_relation=relation, fpr=fpr)[1]
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.exp(promised)
        above = np.where(fpr > 0, growth * fpr, 0.0) + delta
    bounds = [above, 1 - (1 - fpr - delta) / growth, np.ones_like(fpr)]
    if plan is not None:
        bounds.append(special.ndtr(special.ndtri(fpr) + unamplified_mu(plan)))
    return np.min(bounds, axis=0)
