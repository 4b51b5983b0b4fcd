"""Lower bounds on the mu of Gaussian differential privacy from one training run.

Mahloujifar, Melis and Chaudhuri, 2024, "Auditing f-Differential Privacy in One Run". Membership
must have been decided by an independent fair coin for each of m canaries.

Let p_i be the probability of r guesses, r fixed, of which exactly i are correct, and

    right_c = sum over i >= c of i p_i / m,    wrong_c = sum over i >= c of (r - i) p_i / m.

Take canary j and the event that it is guessed held in, and that at least c - 1 other guesses are
correct. If j is held in, at least c guesses are correct; if not, at least c - 1. The event has
probability at most G(x) in the first case if it has probability x in the second, where
G(x) = Phi(Phi^-1(x) + mu). With the mirrored event, averaged over the 2 m cases, and because G is
concave,

    right_c <= G(wrong_{c-1}),  or, if all guesses are "held in",  right_c <= G(2 wrong_{c-1}) / 2.

The second inequality is stronger, because half of the 2 m events are empty, and G(0) = 0.

To see whether Pr[at least c correct] = t is possible, put the mass t at c, which makes right_c
smallest, and give p_{c-1}, p_{c-2}, ... the least mass that the inequalities ask for. If more than
all mass is needed, then t is impossible. A mu for which t = significance is impossible is rejected.
If a larger t were possible, then so would be t, by scaling all p_i; and a larger mu needs less
mass. So the rejected values of mu are an interval.

If fewer than r guesses are made, the missing ones may count as wrong: this only weakens the
inequalities. If r depends on the scores, as for a threshold, the inequalities hold for each r with
the p_i of the event that there are r guesses, and the significance is divided by m, the number of
values of r.

The bound does not approach the true mu with more canaries: an event of probability t may leak more
than others, as much as G allows. It is highest for few guesses with few errors, and for a large
significance, so only few numbers of guesses are tried.
"""

import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.auditing.guesses import Guesses, audit_of
from bevel.auditing.score_cuts import ScoreCuts
from bevel.auditing.thresholds import ThresholdStrategy

_WAYS_PER_OCTAVE = 1
_BISECTIONS = 16
_TOLERANCE = 1e-6


def one_run_fdp_epsilon(
    cuts: ScoreCuts,
    significance: float,
    delta: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
) -> float:
    """The lower bound of `CanaryScoreAuditor.epsilon_one_run_fdp`."""
    audit = audit_of(cuts, significance, one_sided, strategy, _WAYS_PER_OCTAVE)
    made, correct = audit.guesses
    level = significance / 2 if audit.splits else significance
    if audit.most is None:
        level /= audit.canaries
    else:
        made, level = audit.most, level / audit.most.size
    bounds = mu_lower_bounds(Guesses(made, correct), audit.canaries, level, one_sided)
    return gaussian_epsilon(audit.combined(bounds), delta, _TOLERANCE)


def mu_lower_bounds(
    guesses: Guesses, canaries: int, significance: float, one_sided: bool
) -> Floats:
    """A lower bound on mu for each number of guesses and of correct ones."""
    low = np.zeros(guesses.made.size)
    high = np.ones(guesses.made.size)

    def rejected(mu: Floats) -> np.ndarray:
        return tail_is_impossible(guesses, canaries, significance, mu, one_sided)

    shown = rejected(low)
    growing = shown & rejected(high)
    while growing.any():
        low[growing], high[growing] = high[growing], 2 * high[growing]
        growing &= rejected(high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = rejected(middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(shown, low, 0.0)


def tail_is_impossible(
    guesses: Guesses, canaries: int, probability: float, mu: Floats, one_sided: bool
) -> np.ndarray:
    """Whether no mu-GDP mechanism allows so many correct guesses with this probability."""
    impossible = np.zeros(guesses.made.size, bool)
    active = np.flatnonzero(guesses.correct > 0)
    half = 2.0 if one_sided else 1.0
    count, made, mu = guesses.correct[active], guesses.made[active], mu[active]
    right, wrong = probability * count / canaries, probability * (made - count) / canaries
    while active.size:
        count = count - 1
        with np.errstate(invalid="ignore"):
            needed = special.ndtr(special.ndtri(np.minimum(half * right, 1)) - mu) / half
        over = half * right > 1
        # Where no mass is needed at this count, none is needed at any lower count.
        more = (needed > wrong) & (count >= 0)
        right = right + np.where(more, count / (made - count) * (needed - wrong), 0)
        wrong = np.where(more, needed, wrong)
        over |= right + wrong > made / canaries
        impossible[active[over]] = True
        stay = more & ~over
        if not stay.all():
            active, count, made, mu = active[stay], count[stay], made[stay], mu[stay]
            right, wrong = right[stay], wrong[stay]
    return impossible
