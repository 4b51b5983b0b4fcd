"""`tune`: trains a random number of private trials and releases only the best one."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from dp_accounting import DpEvent

from bevel.accounting import Budget, Ledger, event_to_json
from bevel.batch_selection import ExamplesByUser
from bevel.checks import function, in_one_line, instance, text
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan
from bevel.training import RunOptions, Trainer
from bevel.training.data import fingerprint, source_of
from bevel.training.digest import digest
from bevel.training.folder import LEDGER, RELEASED, RUN
from bevel.training.identity import Change, flatten, named_values
from bevel.training.metrics_files import to_json
from bevel.training.model_state import as_arrays
from bevel.training.resume import surroundings
from bevel.training.run_description import PACKAGES, commit_of_caller, version_of
from bevel.training.run_json import read_record
from bevel.training.tuning_record import PRIVATE_SELECTION, TRIAL, Tuning
from bevel.tuning.costliest import check_plan, costliest_of, plans_at_ends
from bevel.tuning.price import Price, price_of, selection_event
from bevel.tuning.result import TuningResult, read_result
from bevel.tuning.search_folder import SearchFolder
from bevel.tuning.spaces import Distribution, Settings, checked_space, drawn_settings
from bevel.tuning.trial_count import TrialCount

PyTree = Any
METRICS_OF_A_RUN = ("step", "epsilon", "delta", "attempt")
NAME_OF_TRIALS = "trial"  # of every trial: a number in a released file would show a rank


@dataclasses.dataclass(frozen=True)
class Trials:
    """What every trial of a search does.

    Attributes:
      make_trainer: from the settings of a trial to its trainer. It must not look at the data.
      data, params, model_state, user_ids: as in `Trainer.fit`.
      score: from the parameters of a trial to a number; higher is better. It may use data that is
        not protected, such as public or held-out data, or protected data if `score_event` says what
        it reveals. Its own randomness must be independent from trial to trial.
      score_event: what one score reveals about the protected data, as an event. None for nothing.
      score_name: the name of the score in the released metrics.
      settings_of: from the settings of a trial to what its record calls `settings`.
    """

    make_trainer: Callable[[Settings], Trainer]
    data: Any
    params: PyTree
    score: Callable[[PyTree], float]
    score_event: DpEvent | None = None
    score_name: str = "score"
    model_state: PyTree = None
    user_ids: Any = None
    settings_of: Callable[[Settings], Mapping[str, Any]] = dict

    def __post_init__(self) -> None:
        """Finds mistakes before anything is charged."""
        function("make_trainer", self.make_trainer, "pass a function from settings to a Trainer")
        function("score", self.score, "pass a function from parameters to a number")
        function("settings_of", self.settings_of, "pass a function from settings to a dict")
        if text("score_name", self.score_name) in METRICS_OF_A_RUN:
            raise FixArgumentsError(
                f"score_name={self.score_name!r} is a metric of every run: pass another name."
            )

    def plan(self, settings: Settings) -> DPExecutionPlan:
        trainer = self.make_trainer(settings)
        if not isinstance(trainer, Trainer):
            raise FixArgumentsError(
                f"make_trainer returned a {type(trainer).__name__}: return Trainer(...)."
            )
        return trainer.plan


def tune(
    make_trainer: Callable[[Settings], Trainer],
    space: Mapping[str, Distribution],
    data: Any,
    params: PyTree,
    *,
    score: Callable[[PyTree], float],
    folder: str | os.PathLike[str],
    expected_trials: float = 10.0,
    distribution: str | float = "geometric",
    options: RunOptions | None = None,
    **others: Any,
) -> TuningResult:
    """Draws settings from a space, trains a model with each, and releases only the best one.

    Formal guarantee: the released half of the folder, and the result, satisfy the event that is
    charged to the ledger (`selection_event` of the costliest trial) for neighbours that differ in
    one unit of the plan, provided that the seed of the search is secret, that the score reveals no
    more about the protected data than `score_event` says, and that nobody sees the private half.

    The number of trials is drawn from a secret seed, which is on disk before it is used, and all
    trials run. The whole search is charged before its first trial. If the search is killed, start
    it again: it continues with the same number of trials and the same settings, at no further cost.
    A search in another folder is a new search, and is charged again. A trial whose score is NaN
    counts as the worst. The duration of a search reveals the number of trials, so keep it secret.

    Args:
      make_trainer: from the settings of a trial to its `Trainer`. It must not look at the data. If
        the event of a trial depends on the settings, one combination of the ends of the space must
        be proven to cost at least as much as all others. The search is charged for it.
      space: a distribution of values for each name: `Uniform`, `LogUniform` or `OneOf`. It must
        not be chosen by looking at the protected data.
      data, params: as in `Trainer.fit`; every trial starts from the same parameters.
      score: from the parameters of a trial to a number; higher is better (see `Trials`).
      folder: where the search is kept (`bevel.tuning.search_folder`).
      expected_trials, distribution: see `TrialCount`. A fixed number of trials is refused.
      options: as in `Trainer.fit`. Ledger, anchor, budget, delta and name apply to the search.
        By default, the budget of a new ledger is what the search costs.
      others: `score_event`, `score_name`, `model_state`, `user_ids` and `settings_of` of `Trials`.

    Raises:
      StopRunError: the budget does not allow the search. Nothing was trained or charged.
      RunInterrupted: after Ctrl-C or SIGTERM. Start the search again to continue it.
    """
    trials = Trials(make_trainer, data, params, score, **others)
    count, options = TrialCount(expected_trials, distribution), options or RunOptions()
    instance("options", options, RunOptions, "RunOptions(...)")
    if options.accept:
        raise FixArgumentsError(
            f"accept={list(options.accept)!r}: trials that change on the way are not alike, and "
            "the price of a search holds for alike trials only. Leave it out."
        )
    checked = checked_space(space)
    if jax.process_count() > 1:
        raise FixArgumentsError("a search runs in one process: start it without bevel launch.")
    plans = plans_at_ends(trials.plan, checked)
    plan, steps = costliest_of(plans), max(plan.iterations for plan in plans)
    price = price_of_search(plan, count, options, trials.score_event)
    if count.is_too_even or not math.isfinite(price.epsilon):
        raise FixArgumentsError(
            f"the best of {count} is not private: a trial has too little noise for it. Use more "
            "noise, fewer trials, or distribution='logarithmic'."
        )
    event = selection_event(plan.dp_event, count, score_event=trials.score_event)
    budget = Budget(price.epsilon, price.delta)
    root = Path(folder)
    with SearchFolder(root, plan, event, budget, options, steps) as search:
        _Search(search, trials, checked, count, plan, price, options).run()
    return read_result(root, params, price)


def price_of_search(
    plan: DPExecutionPlan,
    count: TrialCount,
    options: RunOptions,
    score_event: DpEvent | None = None,
) -> Price:
    """Returns the price of a search whose trials cost at most as much as `plan`. Trains nothing."""
    return price_of(
        plan.dp_event, count, delta_of(plan, options), plan.neighboring_relation, score_event
    )


def delta_of(plan: DPExecutionPlan, options: RunOptions) -> float:
    budget = options.budget or plan.budget
    if budget is None and options.ledger is not None and Path(options.ledger).exists():
        budget = Ledger.read(options.ledger).terms.budget
    delta = options.delta or (budget.delta if budget else None)
    if delta is None:
        raise FixArgumentsError(
            "the delta of the search is not known: pass RunOptions(delta=...), well below one over "
            "the number of examples."
        )
    return delta


@dataclasses.dataclass(frozen=True)
class _Search:
    """One search in its folder."""

    folder: SearchFolder
    trials: Trials
    space: dict[str, Distribution]
    count: TrialCount
    plan: DPExecutionPlan
    price: Price
    options: RunOptions

    def run(self) -> None:
        """Charges the search, runs all trials that are left, and releases the best."""
        identity = self._identity()
        if self.folder.is_complete:
            self.folder.check_result(identity)
            return
        secrets = self.folder.begin(identity, self._fixed_settings())
        seed = secrets.sampling_seed
        numbers = range(self.count.draw(seed))
        drawn = [drawn_settings(self.space, seed, number) for number in numbers]
        for settings in drawn:  # all of them, before any result is known
            check_plan(self.trials.plan(settings), self.plan, settings)
        self._check_data(secrets.row_key)
        for number, settings in enumerate(drawn):
            if number not in self.folder.scores():
                self.folder.add_score(number, self._scored(number, settings))
        self._release(drawn)

    def _identity(self) -> dict[str, Any]:
        """Returns what must be the same when the search is started again."""
        return {
            "space": {name: repr(distribution) for name, distribution in self.space.items()},
            "trials": [self.count.expected, str(self.count.shape)],
            "event": event_to_json(self.folder.event),
            "unit": self.plan.unit.name,
            "relation": self.plan.neighboring_relation.name,
            "units": self.plan.num_units,
            "params": digest(jax.tree.map(jax.numpy.asarray, self.trials.params)),
        }

    def _fixed_settings(self) -> dict[str, Any]:
        """What trials record of the settings that are the same for all, by dotted names."""
        first = {name: distribution.ends()[0] for name, distribution in self.space.items()}
        named: dict[str, Any] = to_json(flatten(named_values(self.trials.settings_of(first))))
        if self.trials.model_state is not None:
            named["model_state"] = " ".join(digest(as_arrays(self.trials.model_state)))
        return {name: value for name, value in named.items() if Change(name).kind != "noted"}

    def _check_data(self, key: bytes) -> None:
        """Raises unless the data are those that the search began with. Trials check theirs too."""
        users = self.trials.user_ids
        population = None if users is None else ExamplesByUser.of(users)
        self.folder.check_data(fingerprint(source_of(self.trials.data), key, population))

    def _scored(self, number: int, settings: Settings) -> float:
        """Trains a trial, or the rest of it, and returns its score; the lowest for NaN."""
        trainer, folder = self.trials.make_trainer(settings), self.folder.trial(number)
        check_plan(trainer.plan, self.plan, settings)  # it may not be the one that was checked
        state = self._fit(trainer, folder, settings)
        if attempt_of(folder):
            # It was killed and continued with fresh noise, so it is not one run of the plan. Nobody
            # has seen any of it, so it may start over with the same settings.
            self.folder.discard_trial(number)
            state = self._fit(trainer, folder, settings)
        score: Any = self.trials.score(trainer.released(state).evaluated)
        try:
            value = float(score)
        except (TypeError, ValueError):
            value = math.inf
        if value == math.inf or isinstance(score, str):
            raise FixArgumentsError(
                f"score returned {in_one_line(repr(score), 60)}: return a number, higher for "
                "better models, and at most finite."
            )
        return -math.inf if math.isnan(value) else value

    def _fit(self, trainer: Trainer, folder: Path, settings: Settings) -> Any:
        options = dataclasses.replace(
            self.options,
            ledger=None,  # the trial has a private ledger of its own: the search is already charged
            anchor=None,
            budget=None,
            name=NAME_OF_TRIALS,
            delta=self.price.delta,
            tensorboard=False,
            progress=False,
            settings=self.trials.settings_of(settings),
            tuning=Tuning(TRIAL, self.price.epsilon_of_one_trial, str(self.count)),
        )
        return trainer.fit(
            self.trials.data,
            self.trials.params,
            model_state=self.trials.model_state,
            folder=folder,
            user_ids=self.trials.user_ids,
            options=options,
        )

    def _release(self, drawn: list[Settings]) -> None:
        """Publishes the first trial with the highest score. Equal scores are exchangeable."""
        epsilon, delta = self.folder.spent, self.price.delta
        price, trials = self.price, str(self.count)
        tuning = Tuning(PRIVATE_SELECTION, price.epsilon_of_one_trial, trials, price.epsilon)
        searched = {
            "tuning": dataclasses.asdict(tuning),
            "searched": {name: repr(distribution) for name, distribution in self.space.items()},
            "budget": None,
            "delta": delta,
        }
        scores = self.folder.scores()
        if not drawn:
            unit, relation = self.plan.unit.name, self.plan.neighboring_relation.name
            empty = {"unit": unit, "relation": relation, "steps": 0, "ending": "no trial was drawn"}
            self.folder.publish(None, empty | searched | {"selected": None}, {})
            return
        best = max(range(len(drawn)), key=lambda number: scores[number])
        folder = self.folder.trial(best)
        record = read_record(folder / RELEASED / RUN)
        record |= self._surroundings(drawn[best])
        score = scores[best] if math.isfinite(scores[best]) else None
        selected = {"settings": to_json(drawn[best]), "score": score}
        metrics = {"step": record["steps"], "epsilon": epsilon, "delta": delta, "attempt": 0}
        if score is not None:
            metrics[self.trials.score_name] = score
        self.folder.publish(folder, record | searched | {"selected": selected}, metrics)

    def _surroundings(self, settings: Settings) -> dict[str, Any]:
        """Returns the surroundings at the end: those of the best trial may show when it ran."""
        return {
            "versions": {name: version_of(name) for name in PACKAGES},
            "commit": commit_of_caller(),
            "surroundings": surroundings(self.trials.make_trainer(settings).mesh),
            "changes": [],
        }


def attempt_of(folder: Path) -> int:
    """Returns the last attempt of a trial: above 0 if it continued with fresh noise."""
    return Ledger.read(folder / RELEASED / LEDGER).released(NAME_OF_TRIALS)[0]
