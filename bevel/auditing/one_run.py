"""Lower bounds on epsilon from one training run with many canaries.

The idea is that of Steinke, Nasr and Jagielski, 2023, "Privacy Auditing with One (1) Training Run".
Nothing is assumed about the scores, and canaries may influence each other, but membership must have
been decided by an independent fair coin for each of m canaries. How many are held in is random.

Theorem. Let training be (epsilon, delta)-DP, q = e^epsilon / (1 + e^epsilon), and f_r(v) =
Pr[Bin(r, q) >= v]. The auditor looks at the output Y of training and guesses the coins of some
canaries, in one or several ways. Way k makes r_k guesses and has a critical number v_k; both may
depend on Y. Let L = m delta / (1 + e^epsilon), or half of that if all guesses are "held in". If,
for some number w that does not depend on Y,

    (f_r(v) + f_r(v - 1) + ... + f_r(v - w + 1)) / w <= a    with r = r_k and v = v_k, for each way,

then some way has v_k or more correct guesses with probability at most a times the number of ways,
plus L / w.

Proof. Let S_i = +1 if canary i is held in, and -1 otherwise. Given Y and S_1, ..., S_{i-1}, let
S_i = +1 with probability p_i. Draw U_1, ..., U_m independent and uniform, also independent of Y,
and set S_i = +1 where U_i <= p_i: this gives Y and S their joint distribution. A guess of +1 is
correct if U_i <= p_i, so only if U_i <= q, or q < U_i <= p_i. A guess of -1 is correct only if
1 - U_i <= q, or q < 1 - U_i <= 1 - p_i. Call the second case of each a leak, and let F be the
number of leaks at all canaries. Then way k has at most B_k + F correct guesses, where B_k counts
its guesses with U_i <= q, or 1 - U_i <= q. Given Y, these are fixed events about independent
numbers, each of probability q, so B_k has the distribution Bin(r_k, q).

To bound E[F], fix S_1, ..., S_{i-1}, and let P and Q be the densities of Y if also S_i = +1, or -1.
The later coins are fair in both cases, so P and Q are those of an (epsilon, delta)-DP mechanism.
Y has the density (P + Q) / 2, and p_i = P / (P + Q), so the first kind of leak has probability

    integral of (p_i - q)_+ (P + Q) / 2 = integral of (P - e^epsilon Q)_+ / (2 + 2 e^epsilon),

which is at most delta / (2 + 2 e^epsilon), as is that of the second kind. So E[F] <= L.

If way k has v_k or more correct guesses, then F >= v_k - B_k, and (w - (v_k - B_k)_+)_+ + F >= w.
So, by Markov's inequality, this happens for some k with probability at most 1 / w times
the sum over k of E[(w - (v_k - B_k)_+)_+], plus E[F]. Given Y, the expectation for way k is the
sum of f_r(v_k - i) over i = 0, ..., w - 1, which is at most a w. This proves the theorem.

Theorem 5.2 of the paper needs a number of guesses that is fixed before the scores are seen. This
one does not, which is what thresholds and splits need. For w = 1, it is the union bound over leaks.
A larger w makes delta cheaper, and the tails a little larger: it is what many canaries need.

The bound is the least epsilon that is not rejected. Each epsilon has its own w, fixed before the
scores are seen. From one whole number to the next, L and w are taken at the lower one.
"""

import math

import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats, Ints
from bevel.auditing.clopper_pearson import lower_bound
from bevel.auditing.guesses import Guesses, audit_of
from bevel.auditing.score_cuts import ScoreCuts
from bevel.auditing.thresholds import ThresholdStrategy

_BISECTIONS = 30
_MOST_TAILS = 64
_LEAST_SHARE = 0.01  # of the significance: leaks that cost less are not worth another step


def one_run_epsilon(
    cuts: ScoreCuts,
    significance: float,
    delta: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
) -> float:
    """The lower bound of `CanaryScoreAuditor.epsilon_one_run`."""
    audit = audit_of(cuts, significance, one_sided, strategy, few_ways=False)
    significance = audit.significance
    bounds = np.zeros(audit.guesses.made.size)
    reached = np.ones(bounds.size, bool)
    low = 0.0
    while reached.any():
        leaks = leaks_of(audit.canaries, low, delta, one_sided)
        if leaks > audit.canaries * significance:
            break  # w would be more than twice the number of canaries, and the mean tail large
        shifts, width = tails_of(leaks, significance)
        level = (significance - leaks / width) / audit.ways
        last = leaks <= _LEAST_SHARE * significance
        high = math.inf if last else low + 1
        shown = _largest_rejected(audit.guesses, shifts, level, low, high)
        bounds = np.where(reached, np.maximum(bounds, shown), bounds)
        reached &= (shown >= high) & (not last)
        if not audit.splits:  # an epsilon is rejected if any way rejects it
            reached[:] = reached.any()
        low = high
    return audit.combined(bounds)


def leaks_of(canaries: int, epsilon: float, delta: float, one_sided: bool) -> float:
    """L of the theorem."""
    return canaries * delta * float(special.expit(-epsilon)) / (2 if one_sided else 1)


def tails_of(leaks: float, significance: float) -> tuple[Ints, int]:
    """Shifts i of the tails f(v - i) whose mean is taken, and w: leaks cost at most half.

    If w is large, only the last of several neighbouring tails is taken, which is the largest.
    """
    wanted = max(math.ceil(2 * leaks / significance), 1)
    tails = min(wanted, _MOST_TAILS)
    each = -(-wanted // tails)
    return each * np.arange(1, tails + 1) - 1, tails * each


def mean_tail(guesses: Guesses, shifts: Ints, epsilon: Floats) -> Floats:
    """The mean of f(v - i) over the shifts i, for each number of guesses and correct ones v."""
    wanted = guesses.correct - shifts[:, None]
    tail = special.betainc(
        np.maximum(wanted, 1), guesses.made - np.maximum(wanted, 1) + 1, special.expit(epsilon)
    )
    return np.where(wanted > 0, tail, 1.0).mean(0)


def _largest_rejected(
    guesses: Guesses, shifts: Ints, level: float, low: float, high: float
) -> Floats:
    """For each way, the largest epsilon up to `high` with a mean tail of `level`; 0 if below `low`.

    All smaller ones are rejected too, because tails grow with epsilon.
    """
    if shifts.size == 1 and shifts[0] == 0:
        with np.errstate(divide="ignore"):
            found = special.logit(lower_bound(guesses.correct, guesses.made, level))
        return np.where(found > low, np.minimum(found, high), 0.0)
    below, above = np.full(guesses.made.size, low), np.full(guesses.made.size, high)
    ends = [mean_tail(guesses, shifts, end) <= level for end in (below, above)]
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        rejected = mean_tail(guesses, shifts, middle) <= level
        below, above = np.where(rejected, middle, below), np.where(rejected, above, middle)
    return np.where(ends[0], np.where(ends[1], high, below), 0.0)
