"""Finds the noise multiplier, batch size or number of steps that fits a budget.

One evaluation with PLD takes up to a second, and minutes if there is almost no noise. A search
therefore starts from the answer of RDP, which is always fast, continues with coarsely rounded PLD,
and uses the final accountant only to check the last candidates.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable

import scipy.optimize
from dp_accounting import DpEvent, NeighboringRelation

from bevel.accounting.accountants import (
    AccountantFn,
    cheaper_accountants,
    rdp_approximation,
    rdp_with_few_orders,
)
from bevel.accounting.arguments import Relation, check_budget, relation_of
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import MonteCarlo
from bevel.accounting.noise_search import LEAST_NOISE, MOST_NOISE, NoiseSearch
from bevel.accounting.spending import epsilon as epsilon_of
from bevel.checks import finite_number, function, instance, positive_number, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class _CalibrationTarget:
    """The budget, and how epsilon is computed."""

    epsilon: float
    delta: float
    relation: NeighboringRelation
    accountant_fn: AccountantFn | None
    monte_carlo: MonteCarlo | None = None

    @classmethod
    def checked(
        cls, epsilon: float, delta: float, relation: Relation, accountant_fn: AccountantFn | None
    ) -> "_CalibrationTarget":
        epsilon = finite_number("epsilon", epsilon, "such as 3", 0)
        delta = finite_number("delta", delta, "well below one over the number of examples", 0, 1)
        check_budget(epsilon, delta)
        if accountant_fn is not None:
            function("accountant_fn", accountant_fn, "pass an accountant of dp-accounting, or None")
        return cls(epsilon, delta, relation_of(relation), accountant_fn)

    def cost(self, event: DpEvent, accountant_fn: AccountantFn | None) -> float:
        return epsilon_of(
            event,
            delta=self.delta,
            neighboring_relation=self.relation,
            accountant_fn=accountant_fn,
            monte_carlo=self.monte_carlo,
        )

    def guess(self, event: DpEvent) -> float:
        """Estimates the epsilon of an event by RDP, in milliseconds. It is not a bound."""
        approximation = rdp_approximation(event, self.relation)
        accountant = rdp_with_few_orders(NeighboringRelation.ADD_OR_REMOVE_ONE)
        if not accountant.supports(approximation):
            return math.nan
        return float(accountant.compose(approximation).get_epsilon(self.delta))


def calibrate_noise_multiplier(
    make_event: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    monte_carlo: MonteCarlo | None = None,
    tolerance: float = 1e-3,
) -> float:
    """Returns the least noise multiplier with which `make_event(noise_multiplier)` fits the budget.

    Its epsilon is at most `epsilon`, and less by at most `tolerance` (or by a hundredth of epsilon,
    if that is smaller). With Monte Carlo bounds, the search comes within three percent. The
    result is then checked with fresh samples, because the first ones influenced the choice.

    Takes about a second for ten thousand steps of DP-SGD, and almost no time when repeated.
    """
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    function("make_event", make_event, "pass a function from a noise multiplier to the event")
    instance("monte_carlo", monte_carlo, MonteCarlo | None, "MonteCarlo(...), or None")
    if isinstance(make_event(1.0), MixtureDpEvent):
        return _calibrate_by_sampling(make_event, budget, monte_carlo)
    width = min(positive_number("tolerance", tolerance, "such as 1e-3"), budget.epsilon / 100)
    if not width > 0:
        raise FixArgumentsError(f"epsilon={epsilon}: no noise gives so small an epsilon.")
    search = NoiseSearch(goal=budget.epsilon - width / 2)

    def cost_with(accountant: AccountantFn | None) -> Callable[[float], float]:
        return lambda noise: budget.cost(make_event(noise), accountant)

    noise = _guessed_noise(make_event, budget)
    for cheaper in cheaper_accountants(make_event(noise), budget.relation, accountant_fn):
        noise = search.near(cost_with(cheaper), noise)
    return search.within(cost_with(accountant_fn), noise, budget.epsilon - width, budget.epsilon)


def _guessed_noise(make_event: Callable[[float], DpEvent], budget: _CalibrationTarget) -> float:
    """Returns the noise multiplier that fits the budget according to RDP."""

    def excess(log_noise: float) -> float:
        guess = budget.guess(make_event(math.exp(log_noise)))
        return math.log(min(max(guess, 1e-12), 1e12) / budget.epsilon)

    if math.isnan(budget.guess(make_event(1.0))):
        return 1.0
    # Approach the answer in strides from 1, because RDP loses precision far away from it.
    noise, stride = 1.0, 4.0 if excess(0.0) > 0 else 0.25
    while LEAST_NOISE < noise < MOST_NOISE:
        previous, noise = noise, noise * stride
        if (excess(math.log(noise)) > 0) == (stride < 1):
            bracket = sorted([math.log(previous), math.log(noise)])
            return math.exp(scipy.optimize.brentq(excess, *bracket, xtol=1e-2))
    return min(max(noise, LEAST_NOISE), MOST_NOISE)


def _calibrate_by_sampling(
    make_event: Callable[[float], DpEvent],
    budget: _CalibrationTarget,
    monte_carlo: MonteCarlo | None,
) -> float:
    stated = monte_carlo or MonteCarlo.for_delta(budget.delta)
    # Other samples than those of what a run will state, because they influence the choice.
    settings = monte_carlo or MonteCarlo(stated.num_samples, stated.failure_probability)
    # With one seed all noise multipliers see the same draws, so more noise always costs less.
    search_target = dataclasses.replace(budget, monte_carlo=settings)
    noise = NoiseSearch(goal=0.985 * budget.epsilon).within(
        lambda noise: search_target.cost(make_event(noise), None),
        1.0,
        0.97 * budget.epsilon,
        budget.epsilon,
    )
    # Each check has half the failure probability of the one before. Together they fail with at
    # most `failure_probability`, which is subtracted from delta.
    failure = settings.failure_probability
    for _ in range(50):
        failure /= 2
        fresh = MonteCarlo(settings.num_samples, failure)
        check_target = dataclasses.replace(
            budget, delta=budget.delta - settings.failure_probability, monte_carlo=fresh
        )
        # What a run will state counts too, or its noise could be too little for its budget.
        targets = (check_target, dataclasses.replace(budget, monte_carlo=stated))
        if all(target.cost(make_event(noise), None) <= budget.epsilon for target in targets):
            return noise
        noise *= 1.01
    raise FixArgumentsError(
        f"{settings.num_samples} samples are too few to show epsilon={budget.epsilon} at "
        f"delta={budget.delta}. Use a larger num_samples."
    )


def calibrate_batch_size(
    make_event: Callable[[int], DpEvent],
    *,
    num_examples: int,
    epsilon: float,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
) -> int:
    """Returns the largest (expected) batch size, up to `num_examples`, that fits the budget."""
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    limit = whole_number("num_examples", num_examples)
    return _largest_within("batch of one example", make_event, budget, limit)


def calibrate_iterations(
    make_event: Callable[[int], DpEvent],
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    most: int = 10**8,
) -> int:
    """Returns the largest number of steps, up to `most`, that fits the budget."""
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    return _largest_within("single step", make_event, budget, whole_number("most", most))


def _largest_within(
    smallest: str, make_event: Callable[[int], DpEvent], budget: _CalibrationTarget, limit: int
) -> int:
    """Returns the largest number whose event fits the budget: by RDP, coarse PLD, then exactly."""
    function("make_event", make_event, "pass a function from a number to the event")
    if isinstance(make_event(1), MixtureDpEvent):
        raise FixArgumentsError(
            f"{type(make_event(1)).__name__} is bounded by Monte Carlo sampling, so only its noise "
            "multiplier can be calibrated: use calibrate_noise_multiplier."
        )
    largest = 1
    if not math.isnan(budget.guess(make_event(1))):
        largest = largest_that_fits(lambda k: budget.guess(make_event(k)) <= budget.epsilon, limit)
    stages = cheaper_accountants(make_event(max(1, largest)), budget.relation, budget.accountant_fn)
    for accountant in (*stages, budget.accountant_fn):
        largest = largest_that_fits(
            lambda k, a=accountant: budget.cost(make_event(k), a) <= budget.epsilon,  # type: ignore[misc]
            limit,
            largest,
        )
    if largest == 0:
        raise FixArgumentsError(
            f"not even a {smallest} fits epsilon={budget.epsilon}, delta={budget.delta}. Use more "
            "noise or a larger budget."
        )
    return largest


def largest_that_fits(fits: Callable[[int], bool], limit: int, guess: int = 1) -> int:
    """Returns the largest k from 1 to `limit` with `fits(k)`, or 0. Starts searching at `guess`."""
    low, high, stride = 0, limit + 1, 1
    k = min(max(guess, 1), limit)
    while low + 1 < high:
        if fits(k):
            low, k = k, k + stride
        else:
            high, k = k, k - stride
        if not low < k < high:
            break
        stride *= 2
    untested = range(low + 1, high)
    return low + bisect.bisect_left(untested, True, key=lambda k: not fits(k))
