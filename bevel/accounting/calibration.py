"""From a budget to a noise multiplier, a batch size or a number of steps.

One evaluation with PLD takes up to a second, and minutes where there is next to no noise. So a
search begins where RDP, which is fast everywhere, puts the answer; goes on with PLD at a coarse
rounding; and only what is returned is checked with the accountant that has the last word.
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
    like_for_rdp,
    rdp_with_few_orders,
)
from bevel.accounting.arguments import Relation, check_budget, relation_of
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.monte_carlo import MonteCarlo
from bevel.accounting.noise_search import LEAST_NOISE, MOST_NOISE, NoiseSearch
from bevel.accounting.spending import epsilon as epsilon_of
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class _CalibrationTarget:
    """What may be spent, and how it is counted."""

    epsilon: float
    delta: float
    relation: NeighboringRelation
    accountant_fn: AccountantFn | None
    monte_carlo: MonteCarlo | None = None

    @classmethod
    def checked(
        cls, epsilon: float, delta: float, relation: Relation, accountant_fn: AccountantFn | None
    ) -> "_CalibrationTarget":
        check_budget(epsilon, delta)
        return cls(float(epsilon), float(delta), relation_of(relation), accountant_fn)

    def cost(self, event: DpEvent, accountant_fn: AccountantFn | None) -> float:
        return epsilon_of(
            event,
            delta=self.delta,
            neighboring_relation=self.relation,
            accountant_fn=accountant_fn,
            monte_carlo=self.monte_carlo,
        )

    def guess(self, event: DpEvent) -> float:
        """Roughly the epsilon of an event, by RDP, in milliseconds. Never a bound."""
        alike = like_for_rdp(event, self.relation)
        accountant = rdp_with_few_orders(NeighboringRelation.ADD_OR_REMOVE_ONE)
        if not accountant.supports(alike):
            return math.nan
        return float(accountant.compose(alike).get_epsilon(self.delta))


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
    """The least noise multiplier with which `make_event(noise_multiplier)` is within the budget.

    Its epsilon is at most `epsilon`, and less by at most `tolerance` (a hundredth of epsilon, if
    that is smaller). Events bounded by sampling come within three percent, and are searched with
    one set of samples and checked with another, for the noise was chosen by the first.

    Takes about a second for ten thousand steps of DP-SGD, and next to nothing when repeated.
    """
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    if isinstance(make_event(1.0), MixtureDpEvent):
        return _calibrate_by_sampling(make_event, budget, monte_carlo)
    width = min(tolerance, budget.epsilon / 100)
    if not width > 0:
        raise FixArgumentsError(f"tolerance={tolerance}: give a positive number.")
    search = NoiseSearch(goal=budget.epsilon - width / 2)

    def cost_with(accountant: AccountantFn | None) -> Callable[[float], float]:
        return lambda noise: budget.cost(make_event(noise), accountant)

    noise = _guessed_noise(make_event, budget)
    for cheaper in cheaper_accountants(make_event(noise), budget.relation, accountant_fn):
        noise = search.near(cost_with(cheaper), noise)
    return search.within(cost_with(accountant_fn), noise, budget.epsilon - width, budget.epsilon)


def _guessed_noise(make_event: Callable[[float], DpEvent], budget: _CalibrationTarget) -> float:
    """The noise multiplier that RDP would take."""

    def excess(log_noise: float) -> float:
        guess = budget.guess(make_event(math.exp(log_noise)))
        return math.log(min(max(guess, 1e-12), 1e12) / budget.epsilon)

    if math.isnan(budget.guess(make_event(1.0))):
        return 1.0
    # In strides from 1: far from the answer, RDP loses its digits.
    noise, stride = 1.0, 4.0 if excess(0.0) > 0 else 0.25
    while LEAST_NOISE < noise < MOST_NOISE:
        before, noise = noise, noise * stride
        if (excess(math.log(noise)) > 0) == (stride < 1):
            between = sorted([math.log(before), math.log(noise)])
            return math.exp(scipy.optimize.brentq(excess, *between, xtol=1e-2))
    return min(max(noise, LEAST_NOISE), MOST_NOISE)


def _calibrate_by_sampling(
    make_event: Callable[[float], DpEvent],
    budget: _CalibrationTarget,
    monte_carlo: MonteCarlo | None,
) -> float:
    settings = monte_carlo or MonteCarlo.for_delta(budget.delta)
    # With one seed all noise multipliers see the same draws, so the cost falls with the noise.
    searched = dataclasses.replace(budget, monte_carlo=settings)
    noise = NoiseSearch(goal=0.985 * budget.epsilon).within(
        lambda noise: searched.cost(make_event(noise), None),
        1.0,
        0.97 * budget.epsilon,
        budget.epsilon,
    )
    # Each check may fail with half the probability of the one before; all of them together with
    # no more than `failure_probability`, which is taken off delta.
    failure = settings.failure_probability
    for _ in range(50):
        failure /= 2
        fresh = MonteCarlo(settings.num_samples, failure)
        checked = dataclasses.replace(
            budget, delta=budget.delta - settings.failure_probability, monte_carlo=fresh
        )
        if checked.cost(make_event(noise), None) <= budget.epsilon:
            return noise
        noise *= 1.01
    raise FixArgumentsError(
        f"{settings.num_samples} samples do not show epsilon={budget.epsilon} at "
        f"delta={budget.delta}: take more samples."
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
    """The largest (expected) batch size, up to `num_examples`, that is within the budget."""
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    most = whole_number("num_examples", num_examples)
    return _largest_within("batch of one example", make_event, budget, most)


def calibrate_iterations(
    make_event: Callable[[int], DpEvent],
    *,
    epsilon: float,
    delta: float,
    neighboring_relation: Relation,
    accountant_fn: AccountantFn | None = None,
    most: int = 10**8,
) -> int:
    """The largest number of steps, up to `most`, that is within the budget."""
    budget = _CalibrationTarget.checked(epsilon, delta, neighboring_relation, accountant_fn)
    return _largest_within("single step", make_event, budget, whole_number("most", most))


def _largest_within(
    least: str, make_event: Callable[[int], DpEvent], budget: _CalibrationTarget, most: int
) -> int:
    """The largest number whose event is within the budget: by RDP, by coarse PLD, then exactly."""
    if isinstance(make_event(1), MixtureDpEvent):
        raise FixArgumentsError(
            "an event that is bounded by sampling: calibrate its noise multiplier instead."
        )
    found = 1
    if not math.isnan(budget.guess(make_event(1))):
        found = last_true(lambda k: budget.guess(make_event(k)) <= budget.epsilon, found, most)
    stages = cheaper_accountants(make_event(max(1, found)), budget.relation, budget.accountant_fn)
    for accountant in (*stages, budget.accountant_fn):
        found = last_true(
            lambda k, a=accountant: budget.cost(make_event(k), a) <= budget.epsilon,  # type: ignore[misc]
            found,
            most,
        )
    if found == 0:
        raise FixArgumentsError(
            f"not even a {least} is within epsilon={budget.epsilon}, delta={budget.delta}: more "
            "noise or a larger budget is needed."
        )
    return found


def last_true(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """The largest k from 1 to `most` with `fits(k)`, or 0: from `guess` in growing strides."""
    low, high, stride = 0, most + 1, 1
    at = min(max(guess, 1), most)
    while low + 1 < high:
        if fits(at):
            low, at = at, at + stride
        else:
            high, at = at, at - stride
        if not low < at < high:
            break
        stride *= 2
    between = range(low + 1, high)
    return low + bisect.bisect_left(between, True, key=lambda k: not fits(k))
