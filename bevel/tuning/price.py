"""The price of a search: the epsilon of its result, and the epsilon of one trial."""

import dataclasses
from typing import TypeVar

import dp_accounting
from dp_accounting import DpEvent

from bevel.accounting import calibrate_noise_multiplier, epsilon, private_selection_event
from bevel.accounting.arguments import Relation
from bevel.accounting.rounding import shown_delta, shown_epsilon
from bevel.checks import finite_number, instance
from bevel.errors import BevelError, FixArgumentsError
from bevel.execution_plan import BandMFConfig, BLTConfig, DPSGDConfig
from bevel.tuning.trial_count import TrialCount

Private = TypeVar("Private", DPSGDConfig, BandMFConfig, BLTConfig)


@dataclasses.dataclass(frozen=True)
class Price:
    """The epsilon of a search and of one of its trials, at the same delta."""

    epsilon: float
    epsilon_of_one_trial: float
    delta: float

    def __str__(self) -> str:
        return (
            f"epsilon {shown_epsilon(self.epsilon)} with tuning, "
            f"{shown_epsilon(self.epsilon_of_one_trial)} for one trial alone, "
            f"at delta {shown_delta(self.delta)}"
        )


def selection_event(
    event: DpEvent, trials: TrialCount, *, score_event: DpEvent | None = None
) -> DpEvent:
    """The event of a search that releases the best of `trials` and nothing else.

    Args:
      event: what one trial releases. It must cost at least as much as any trial of the search.
      score_event: what the score of a trial reveals about the protected data. None if the score
        comes from data that is not protected.
    """
    instance("trials", trials, TrialCount, "a TrialCount, such as TrialCount(10.0)")
    if score_event is not None:
        instance("score_event", score_event, DpEvent, "an event of dp_accounting, or None")
    one = event if score_event is None else dp_accounting.ComposedDpEvent([event, score_event])
    return private_selection_event(one, trials.expected, shape=trials.shape)


def epsilon_of_search(
    event: DpEvent,
    trials: TrialCount,
    *,
    delta: float,
    neighboring_relation: Relation,
    score_event: DpEvent | None = None,
) -> float:
    """The epsilon of the best trial. It is never below the epsilon of one trial, `event`."""
    return price_of(event, trials, delta, neighboring_relation, score_event).epsilon


def price_of(
    event: DpEvent,
    trials: TrialCount,
    delta: float,
    relation: Relation,
    score_event: DpEvent | None = None,
) -> Price:
    one = epsilon(event, delta=delta, neighboring_relation=relation)
    search = selection_event(event, trials, score_event=score_event)
    best = epsilon(search, delta=delta, neighboring_relation=relation)
    return Price(max(one, best), one, delta)


def calibrated(
    config: Private,
    trials: TrialCount,
    *,
    epsilon: float,
    delta: float,
    score_event: DpEvent | None = None,
) -> Private:
    """The config of a trial with the least noise for which the whole search is within epsilon."""
    kinds = DPSGDConfig | BandMFConfig | BLTConfig
    instance("config", config, kinds, "a DPSGDConfig, BandMFConfig or BLTConfig")
    # Beyond these bounds the search for the noise fails, or takes minutes.
    finite_number("epsilon", epsilon, "the epsilon of the search", 1e-3, 1e3)
    finite_number("delta", delta, "well below one over the number of examples", 1e-30, 0.5)
    steps = config.mechanism(1.0).iterations
    try:
        noise = calibrate_noise_multiplier(
            lambda noise: selection_event(
                config.mechanism(noise).event_after(steps), trials, score_event=score_event
            ),
            epsilon=epsilon,
            delta=delta,
            neighboring_relation=config.neighboring_relation,
        )
    except BevelError:
        raise
    except (ArithmeticError, IndexError, ValueError) as error:
        raise FixArgumentsError(
            f"no noise was found for epsilon={epsilon} at delta={delta}: dp-accounting cannot "
            "compute the price of the search there. Pass an epsilon from 0.1 to 100."
        ) from error
    return dataclasses.replace(config, noise_multiplier=noise, target=None)
