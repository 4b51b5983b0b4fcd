"""Lower bounds on the mu of Gaussian differential privacy from one training run.

Mahloujifar, Melis and Chaudhuri, 2024, "Auditing f-Differential Privacy in One Run". Membership
must have been decided by an independent fair coin for each of m canaries.

Let training be mu-GDP: an event that has probability x if a canary is held in has probability at
most G(x) = Phi(Phi^-1(x) + mu) if it is held out, and the other way round. G is increasing and
concave, and G(0) = 0. Let r guesses be made, r fixed, let p_i be the probability that exactly i of
them are correct, and

    right_c = sum over i >= c of i p_i / m,    wrong_c = sum over i >= c of (r - i) p_i / m.

Theorem. right_c <= G(wrong_{c-1}), and right_c <= G(2 wrong_{c-1}) / 2 if all guesses are "held
in", for c = 1, ..., r.

Proof. Take canary j, and the event that it is guessed held in and at least c - 1 of the other
guesses are correct. Let it have probability a_j if j is held in, and b_j if not. Given the other
coins, which do not depend on coin j, this is an event about the output, and mu-GDP applies; the
average over them gives a_j <= G(b_j), because G is concave. In the first case, guess j is correct,
and at least c guesses are; in the second, it is wrong, and at least c - 1 are correct. Let
a'_j <= G(b'_j) be the same for a guess of "held out". As the coin is fair, a canary drawn at random
is guessed correctly while at least c guesses are correct with probability

    right_c = mean of (a_j + a'_j) / 2 over all j.

In the same way, the mean of (b_j + b'_j) / 2 is wrong_{c-1}. G is concave, so the mean of all
G(b_j) and G(b'_j) is at most G of the mean of all b_j and b'_j, which proves the first inequality.
If there are no guesses of "held out", then all a'_j and b'_j are 0, and the same argument for the
b_j alone proves the second, which is stronger, because G is concave and G(0) = 0.

Test. A mu is rejected if no p_0, ..., p_r with Pr[at least c correct] = t, the significance,
satisfies the inequalities. A larger t is then impossible too: if it were possible, so would be t,
by scaling all p_i, because s G(x) <= G(s x) for s <= 1. To find out, put the mass t at c, which
makes right_c smallest and wrong_c largest, and give p_{c-1}, p_{c-2}, ... in this order the least
mass p_i that right_{i+1} <= G(wrong_i) asks for. This is the best choice: if p_i has more, move the
excess to p_{i-1}. This inequality still holds, and for all later ones there are then fewer right
guesses and more wrong ones. If more than all mass is needed, then t is impossible. A larger mu
needs less mass, so the rejected values of mu are an interval.

If the number of guesses depends on the scores, as for a threshold, the theorem holds for each r
with the p_i of the event that there are r guesses. So the significance is divided by m, the number
of values of r. It is also divided by the number of ways to guess. The bound is highest for a large
significance, so few ways are tried. It does not approach the true mu with more canaries: an event
of probability t may leak more than others, as much as G allows.
"""

import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.auditing.guesses import Guesses, audit_of
from bevel.auditing.score_cuts import ScoreCuts
from bevel.auditing.thresholds import ThresholdStrategy

_BISECTIONS = 16
_LARGEST_MU = 1024.0  # more is not asked for: some results are impossible at every mu
_TOLERANCE = 1e-6


def one_run_fdp_epsilon(
    cuts: ScoreCuts,
    significance: float,
    delta: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
) -> float:
    """The lower bound of `CanaryScoreAuditor.epsilon_one_run_fdp`."""
    audit = audit_of(cuts, significance, one_sided, strategy, few_ways=True)
    level = audit.significance / (audit.ways if audit.fixed else audit.canaries)
    bounds = mu_lower_bounds(audit.guesses, audit.canaries, level, one_sided)
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
        growing &= rejected(high) & (high < _LARGEST_MU)
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
