"""One-run bounds, against the theorem written as loops, worst mechanisms, and closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, sparse, special, stats

from bevel.auditing import Bonferroni, CanaryScoreAuditor, Explicit, MultiSplit, Split
from bevel.auditing.guesses import Guesses
from bevel.auditing.one_run import leaks_of, mean_tail, one_run_epsilon, tails_of
from bevel.auditing.score_cuts import ScoreCuts

STRATEGIES = [Bonferroni(), Explicit(2.0), Split(seed=0), MultiSplit(9, seed=0)]


def slow_mean_tail(correct, made, width, epsilon):
    q = special.expit(epsilon)
    return np.mean([stats.binom.sf(correct - i - 1, made, q) for i in range(width)])


def critical(made, width, epsilon, level):
    """The least number of correct guesses that is rejected, which may be more than `made`."""
    numbers = range(made + 1)
    return next((v for v in numbers if slow_mean_tail(v, made, width, epsilon) <= level), made + 1)


def most_hits(canaries, outputs, hit, epsilon, delta):
    """The largest probability of a hit over all (epsilon, delta)-DP mechanisms with fair coins.

    A linear program: its variables are the probabilities of outputs given coins, and their excess
    over e^epsilon times those of neighbours.
    """
    coins = list(itertools.product((-1, 1), repeat=canaries))
    pairs = [
        (x, y)
        for (x, s), (y, t) in itertools.product(enumerate(coins), repeat=2)
        if sum(a != b for a, b in zip(s, t, strict=True)) == 1
    ]
    one, each = np.ones((1, len(outputs))), sparse.eye(len(outputs))
    select = sparse.coo_matrix(
        (
            np.tile([1.0, -math.exp(epsilon)], len(pairs)),
            (np.repeat(range(len(pairs)), 2), np.ravel(pairs)),
        ),
        (len(pairs), len(coins)),
    )
    per_pair = sparse.eye(len(pairs))
    solved = optimize.linprog(
        np.append(
            [-float(hit(y, s)) / len(coins) for s in coins for y in outputs],
            np.zeros(len(pairs) * len(outputs)),
        ),
        sparse.bmat(
            [
                [sparse.kron(select, each), -sparse.kron(per_pair, each)],
                [None, sparse.kron(per_pair, one)],
            ]
        ),
        np.append(np.zeros(len(pairs) * len(outputs)), np.full(len(pairs), delta)),
        sparse.hstack(
            [
                sparse.kron(sparse.eye(len(coins)), one),
                sparse.coo_matrix((len(coins), len(pairs) * len(outputs))),
            ]
        ),
        np.ones(len(coins)),
    )
    assert solved.status == 0
    return -solved.fun


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.2), (0.7, 0.05), (0.7, 0.2)])
@pytest.mark.parametrize(("level", "width"), [(0.3, 1), (0.5, 2), (0.6, 3)])
def test_no_mechanism_breaks_the_theorem(one_sided, epsilon, delta, level, width):
    """All mechanisms and attackers of three canaries, also with a random number of guesses."""
    outputs = list(itertools.product((0, 1) if one_sided else (-1, 0, 1), repeat=3))
    least = [critical(made, width, epsilon, level) for made in range(4)]

    def hit(guesses, coins):
        correct = sum(a == b for a, b in zip(guesses, coins, strict=True))
        return correct >= least[sum(map(abs, guesses))]

    worst = most_hits(3, outputs, hit, epsilon, delta)
    assert worst <= level + leaks_of(3, epsilon, delta, one_sided) / width + 1e-9
    if width == 1 and epsilon == 0:
        assert worst > level  # the leaks are real


def most_tail(correct, made, canaries, epsilon, delta):
    """The largest probability of so many correct two-sided guesses, for many canaries.

    The worst mechanism treats all canaries and both sides alike, so its variables are the
    probabilities of each number of correct guesses, and what exceeds e^epsilon times a neighbour.
    """
    right = np.arange(1, made + 1) / made  # of i correct guesses, the share that is correct
    wrong = right[::-1]  # of i - 1 correct guesses, the share that is not
    gain = sparse.diags([right, -math.exp(epsilon) * wrong], [1, 0], (made, made + 1))
    loss = sparse.diags([-math.exp(epsilon) * right, wrong], [1, 0], (made, made + 1))
    excess = sparse.eye(2 * made)
    solved = optimize.linprog(
        np.append(-(np.arange(made + 1) >= correct).astype(float), np.zeros(2 * made)),
        sparse.bmat([[sparse.vstack([gain, loss]), -excess], [None, np.ones((1, 2 * made))]]),
        np.append(np.zeros(2 * made), delta * canaries / made),
        np.append(np.ones(made + 1), np.zeros(2 * made))[None],
        [1.0],
    )
    assert solved.status == 0
    return -solved.fun


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("made", "canaries"), [(60, 60), (60, 300), (200, 200)])
@pytest.mark.parametrize("delta", [1e-4, 3e-3])
def test_no_mechanism_breaks_the_theorem_with_many_canaries(epsilon, made, canaries, delta):
    leaks = leaks_of(canaries, epsilon, delta, one_sided=False)
    q = special.expit(epsilon)
    for deviations in (1, 2, 4):
        correct = math.ceil(made * q + deviations * math.sqrt(made * q * (1 - q)))
        if correct > made:
            continue
        worst = most_tail(correct, made, canaries, epsilon, delta)
        assert worst >= stats.binom.sf(correct - 1, made, q) - 1e-9
        for width in (1, 2, 5, 20):
            allowed = slow_mean_tail(correct, made, width, epsilon) + leaks / width
            assert worst <= allowed + 1e-9


@pytest.mark.parametrize(("leaks", "width"), [(0, 1), (0.02, 1), (0.05, 2), (1.6, 64), (2, 128)])
def test_leaks_cost_at_most_half_the_significance(leaks, width):
    shifts, found = tails_of(leaks, 0.05)
    assert found == width and leaks / width <= 0.05 / 2
    guesses = Guesses(np.array([300, 200, 20, 0]), np.array([280, 150, 20, 0]))
    for epsilon in (0.0, 1.0, 2.5):
        mean = mean_tail(guesses, shifts, np.full(4, epsilon))
        wanted = [
            slow_mean_tail(*pair, width, epsilon) for pair in zip(*guesses[::-1], strict=True)
        ]
        assert (mean >= np.array(wanted) * (1 - 1e-9)).all()
        if width <= 64:
            np.testing.assert_allclose(mean, wanted, rtol=1e-9)


def epsilon_at(level, correct, made):
    """The epsilon at which so many correct guesses have the probability `level`."""
    return special.logit(special.betaincinv(correct, made - correct + 1, level))


def test_a_threshold_pays_for_the_leaks_of_all_canaries():
    auditor = CanaryScoreAuditor([1.0] * 60 + [0.0] * 40, [1.0] * 5 + [0.0] * 95)
    for delta in (0.0, 1e-4, 5e-4):
        found = auditor.epsilon_one_run(0.05, delta, threshold_strategy=Explicit(0.5))
        level = 0.05 - 200 * delta / (2 + 2 * math.e)  # the bound is between 1 and 2
        assert 1 < found < 2
        assert found == pytest.approx(epsilon_at(level, 60, 65), rel=1e-9)


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("delta", [1e-3, 4e-3, 0.02])
def test_the_bound_is_the_least_epsilon_that_is_not_rejected(delta, one_sided):
    auditor = CanaryScoreAuditor([1.0] * 290 + [0.0] * 10, [1.0] * 20 + [0.0] * 280)
    found = auditor.epsilon_one_run(0.05, delta, one_sided, threshold_strategy=Explicit(0.5))
    made, correct = (310, 290) if one_sided else (600, 570)

    def rejected(epsilon):
        leaks = leaks_of(600, math.floor(epsilon), delta, one_sided)
        width = max(math.ceil(2 * leaks / 0.05), 1)
        if width > 64:  # neighbours are taken together
            width = 64 * math.ceil(width / 64)
            return (
                mean_tail(
                    Guesses(np.array([made]), np.array([correct])),
                    tails_of(leaks, 0.05)[0],
                    np.array([epsilon]),
                )
                + leaks / width
                <= 0.05
            )
        return slow_mean_tail(correct, made, width, epsilon) + leaks / width <= 0.05

    assert found > 0.05
    assert all(rejected(epsilon) for epsilon in np.linspace(0, found - 1e-6, 40))
    # The last step towards the next whole number is not worth its price if leaks cost little.
    assert not rejected(found + 1e-6) or leaks_of(600, found, delta, one_sided) < 0.01 * 0.05


def test_many_canaries_are_not_lost_to_delta():
    """Half of delta for each canary is more than the significance here."""
    position = (np.arange(50_000) + 0.5) / 50_000
    noise = stats.laplace.ppf(position)
    auditor = CanaryScoreAuditor(noise + 1, noise)
    for one_sided in (True, False):
        for strategy in (Bonferroni(), Explicit(0.5), Split(seed=0), MultiSplit(5, seed=0)):
            found = [
                auditor.epsilon_one_run(0.05, delta, one_sided, threshold_strategy=strategy)
                for delta in (0, 1e-5)
            ]
            assert 0.9 * found[0] < found[1] <= found[0] < 1


def test_separated_scores_have_a_closed_form():
    cuts = ScoreCuts(np.ones(400), np.zeros(400))
    # 400, 200, 100, 50, 25 or 12 guesses.
    assert one_run_epsilon(cuts, 0.05, 0.0, True, Bonferroni()) == pytest.approx(
        epsilon_at(0.05 / 6, 400, 400), rel=1e-9
    )
    # All of the rest are guessed, and leaks cost too little to matter from an epsilon of 2 on.
    leaks = leaks_of(400, 2, 1e-5, one_sided=False)
    found = one_run_epsilon(cuts, 0.05, 1e-5, False, Split(seed=1))
    assert found == pytest.approx(epsilon_at(0.05 - leaks, 400, 400), rel=1e-9)
    leaks = leaks_of(400, 3, 1e-5, one_sided=False)
    found = one_run_epsilon(cuts, 0.05, 1e-5, False, MultiSplit(9, seed=1))
    assert found == pytest.approx(epsilon_at(0.025 - leaks, 400, 400), rel=1e-9)


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_shown_from_equal_scores_or_with_delta_1(strategy, one_sided):
    equal = CanaryScoreAuditor(np.ones(200), np.ones(200))
    assert equal.epsilon_one_run(0.05, 1e-5, one_sided, threshold_strategy=strategy) == 0
    separated = CanaryScoreAuditor(np.ones(200) * 3, np.ones(200))
    for significance in (1e-300, 0.05):
        found = separated.epsilon_one_run(significance, 1.0, one_sided, threshold_strategy=strategy)
        assert found == 0
