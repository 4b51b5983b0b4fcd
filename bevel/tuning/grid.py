"""`charged_grid`: trains every combination of settings, releases every trial, and charges all."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dp_accounting

from bevel.accounting import Budget, Ledger, epsilon
from bevel.accounting.rounding import shown_epsilon
from bevel.errors import FixArgumentsError, StopRunError
from bevel.execution_plan import DPExecutionPlan
from bevel.training import LoadedRun, RunOptions, Trainer, load
from bevel.training.folder import LEDGER
from bevel.training.tuning_record import GRID, Tuning
from bevel.tuning.costliest import terms
from bevel.tuning.price import Price
from bevel.tuning.search import Trials, delta_of
from bevel.tuning.spaces import OneOf, Settings, grid_of

PyTree = Any


@dataclasses.dataclass(frozen=True)
class GridTrial:
    """One trial of a grid. Everything about it may be shown."""

    settings: Settings
    score: float
    run: LoadedRun
    folder: Path


def charged_grid(
    make_trainer: Callable[[Settings], Trainer],
    space: Mapping[str, OneOf],
    data: Any,
    params: PyTree,
    *,
    score: Callable[[PyTree], float],
    folder: str | os.PathLike[str],
    options: RunOptions | None = None,
    **others: Any,
) -> tuple[list[GridTrial], Price]:
    """Trains every combination of choices as an ordinary run, and charges all to one ledger.

    You may show all trials and scores, and choose as you like. The price covers all trials
    together, and is higher than for a search with as many trials on average. The trials are in
    folder/0, folder/1, ...; complete ones are not run again. The score must come from data that is
    not protected.

    Returns the trials, the best first, and the price. The arguments are those of `tune`. The budget
    of a new ledger is by default what all trials cost together.
    """
    trials, options = Trials(make_trainer, data, params, score, **others), options or RunOptions()
    if trials.score_event is not None:
        raise FixArgumentsError(
            "score_event: the scores of a grid are not charged. Score on data that is not "
            "protected, or use bevel.tuning.tune."
        )
    combinations, root = grid_of(space), Path(folder)
    plans = [trials.plan(settings) for settings in combinations]
    price = price_of_grid(plans, options)
    delta = price.delta
    ledger = Path(options.ledger or root / LEDGER)
    budget = options.budget or (
        Ledger.read(ledger).terms.budget if ledger.exists() else Budget(price.epsilon, delta)
    )
    if budget is not None and price.epsilon > budget.epsilon:
        raise StopRunError(
            f"the {len(plans)} trials of the grid cost epsilon {shown_epsilon(price.epsilon)} at "
            f"delta {delta:g}, but the budget is {budget}. Nothing was charged. Use fewer "
            "choices, or bevel.tuning.tune."
        )
    found = []
    for number, settings in enumerate(combinations):
        place, trainer = root / str(number), make_trainer(settings)
        state = trainer.fit(
            data,
            params,
            model_state=trials.model_state,
            folder=place,
            user_ids=trials.user_ids,
            options=dataclasses.replace(
                options,
                ledger=ledger,
                budget=budget,
                delta=delta,
                name=f"{options.name or root.absolute().name}, trial {number}",
                settings=trials.settings_of(settings),
                tuning=Tuning(
                    GRID,
                    plans[number].epsilon(delta=delta),
                    f"{len(plans)} trials",
                    price.epsilon,
                ),
            ),
        )
        value = float(score(trainer.released(state).evaluated))
        found.append(GridTrial(settings, value, load(place, like=params), place))
    found.sort(key=lambda trial: -trial.score if trial.score == trial.score else float("inf"))
    return found, price


def price_of_grid(plans: Sequence[DPExecutionPlan], options: RunOptions) -> Price:
    """What all trials of a grid cost together. Raises unless they have the same neighbours."""
    if len({terms(plan) for plan in plans}) > 1:
        raise FixArgumentsError(
            "the trials differ in what they protect (unit, neighbouring relation or number of "
            "units), so their costs do not add up. Use one of them for all trials."
        )
    delta = delta_of(plans[0], options)
    return Price(
        epsilon(
            dp_accounting.ComposedDpEvent([plan.dp_event for plan in plans]),
            delta=delta,
            neighboring_relation=plans[0].neighboring_relation,
        ),
        max(plan.epsilon(delta=delta) for plan in plans),
        delta,
    )
