"""Lower bounds on epsilon from one training run with many canaries.

The idea is that of Steinke, Nasr and Jagielski, 2023, "Privacy Auditing with One (1) Training Run".
Nothing is assumed about the scores, and canaries may influence each other, but membership must have
been decided by an independent fair coin for each of m canaries.

Let q = e^epsilon / (1 + e^epsilon), f_r(v) = Pr[Bin(r, q) >= v], and S_i = +1 if canary i is held
in. Given the output of training and the coins before i, let S_i = +1 with probability p_i. Draw
independent uniform numbers U_i, also independent of the output, and set S_i = +1 where U_i <= p_i:
this is the true joint distribution. A guess of +1 is correct only if U_i <= q, or q < U_i <= p_i; a
guess of -1 only if 1 - U_i <= q, or q < 1 - U_i <= 1 - p_i. Call the second case of each a leak. If
there is no leak then, given the output, the number of correct guesses among any r of them is at
most Bin(r, q), whatever r and the guesses are.

If P and Q are the densities of the output for S_i = +1 and -1, then p_i = P / (P + Q), the output
has the density (P + Q) / 2, and the probability of the first leak is at most

    integral of (P - e^epsilon Q)_+ / (2 + 2 e^epsilon) <= delta / (2 + 2 e^epsilon) <= delta / 4.

So a leak among m canaries has probability at most m delta / 4 if all guesses are +1, and at most
m delta / 2 otherwise. This is subtracted from the significance, once for all ways to guess, also if
the number of guesses depends on the scores. If that number is fixed, and there is one way to guess,
Theorem 5.2 of the paper is used instead: it loses less if there are many canaries.
"""

import math

import numpy as np
from scipy import special

from bevel.auditing.clopper_pearson import lower_bound
from bevel.auditing.guesses import audit_of
from bevel.auditing.roc import upper_hull
from bevel.auditing.score_cuts import ScoreCuts
from bevel.auditing.thresholds import ThresholdStrategy

_WAYS_PER_OCTAVE = 4
_BISECTIONS = 40


def one_run_epsilon(
    cuts: ScoreCuts,
    significance: float,
    delta: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
) -> float:
    """The lower bound of `CanaryScoreAuditor.epsilon_one_run`."""
    audit = audit_of(cuts, significance, one_sided, strategy, _WAYS_PER_OCTAVE)
    made, correct = audit.guesses
    if audit.most is not None and audit.most.size == 1 and delta > 0:
        numbers = int(correct[0]), int(audit.most[0]), audit.canaries
        return _epsilon_of_fixed_number(*numbers, significance, delta)
    level = significance / 2 if audit.splits else significance
    level -= audit.canaries * delta / (4 if one_sided else 2)
    level /= 1 if audit.most is None else audit.most.size
    if level <= 0:
        return 0.0
    with np.errstate(divide="ignore"):
        bounds = np.maximum(special.logit(lower_bound(correct, made, level)), 0)
    return audit.combined(bounds)


def one_run_p_value(correct: int, made: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many correct guesses under (epsilon, delta)-DP.

    `made` must be fixed before the scores are seen; making fewer guesses is allowed. By the proof
    of Theorem 5.2, the number of correct guesses is at most Bin(made, q) + F, E[F] <= 2 m delta. So
    the p-value is the least concave function above i -> f(correct - i), taken at 2 m delta. For
    2 m delta <= 1, it is f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, as in the theorem. It grows
    with epsilon for every delta, so that all epsilons below a rejected one are rejected too.
    """
    q = float(special.expit(epsilon))
    extra = 2 * canaries * delta
    if extra >= correct:
        return 1.0
    # Ten standard deviations below the mean, the probability is within 1e-20 of 1. It is taken as 1
    # from there on, which can only make the p-value larger.
    least = made * q - 10 * math.sqrt(made * q * (1 - q)) - 10 - extra
    wanted = np.arange(correct, max(int(least), 0), -1)
    tail = special.betainc(wanted, made - wanted + 1, q)
    shortfall = np.arange(wanted.size + 1.0)
    return float(np.interp(extra, *upper_hull(shortfall, np.append(tail, 1.0))))


def _epsilon_of_fixed_number(
    correct: int, made: int, canaries: int, significance: float, delta: float
) -> float:
    """The largest rejected epsilon, by bisection; the result itself is rejected."""

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(correct, made, canaries, epsilon, delta) <= significance

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
