"""`bevel tune CONFIG.toml --space ...`: searches settings, and charges the search."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bevel.cli.command_parser import CommandParser
from bevel.cli.config import Config
from bevel.cli.overrides import option_name, with_overrides
from bevel.cli.parsing import config_and_overrides
from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from bevel.cli.job import Job
    from bevel.training import Trainer
    from bevel.tuning import Price, TrialCount
    from bevel.tuning.spaces import Distribution

ABOUT = """Search settings of a config, and charge the search for what its result reveals.

A random number of trials is trained with random settings, and only the best on
the test set is released. The number of trials stays secret. epsilon of [plan]
is the epsilon of the result: the noise of the trials is calibrated so that the
whole search is within it. The search is charged before it begins. If it is
killed, start it again: it continues with the same trials at no further cost.

With --grid, every combination of choices is trained, released and charged.

A model or data of your own ([model] module, [data] source) is a Python file,
which this command runs, with --dry-run too: use files that you trust."""
EXAMPLES = """examples:
  bevel tune config.toml --space "optimizer.learning_rate=log(1e-3,1)" --dry-run
  bevel tune config.toml --space "optimizer.learning_rate=log(1e-3,1)" \\
      --space "plan.clip_norm=one_of(0.3,1,3)" --trials 20 --run.folder=runs/search
  bevel tune config.toml --space "optimizer.momentum=one_of(0,0.9)" --grid

Settings of [plan], [optimizer] and [augmentation] can be searched. Those that
epsilon depends on need noise_multiplier in place of epsilon, and the search is
charged for the most expensive trial. docs/tuning.md explains the price."""
TABLES = ("plan", "optimizer", "augmentation")
PROMISED = ("plan.epsilon", "plan.delta", "plan.relation")  # one promise holds for all trials
HIGHER = ("test_accuracy",)
SPACE = re.compile(r"\s*([\w.-]+)\s*=\s*(log|uniform|one_of)\((.*)\)\s*")


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("tune", ABOUT, EXAMPLES)
    add = parser.add_argument
    add("config", metavar="CONFIG.toml", help="the config of a trial")
    add("--space", action="append", default=[], metavar="KEY=VALUES", help="log(low,high), "
        "uniform(low,high) or one_of(value,...); once for each setting")  # fmt: skip
    add("--trials", type=float, metavar="X", help="mean number of trials (10)")
    add("--distribution", help="of the number of trials: logarithmic, geometric, poisson, or a "
        "shape (geometric)")  # fmt: skip
    add("--grid", action="store_true", help="train, release and charge every combination")
    add("--dry-run", action="store_true", help="show the price, and change nothing")
    options, overrides = parser.parse_known_args(list(arguments))
    for word in overrides:
        if word.startswith("-") and "." not in word:
            parser.error(f"unknown option {word}.")
    if not options.space:
        parser.error('--space is missing: write one, such as "optimizer.learning_rate=log(1e-3,1)"')
    given = {"--trials": options.trials, "--distribution": options.distribution}
    if options.grid and any(value is not None for value in given.values()):
        parser.error("--grid trains every combination: leave out --trials and --distribution.")
    config = config_and_overrides("tune", ABOUT, [options.config, *overrides])
    trials = 10.0 if options.trials is None else options.trials
    distribution = options.distribution or "geometric"
    _Tune(config, options.space, trials, distribution, options.grid).run(options.dry_run)
    return 0


@dataclasses.dataclass(frozen=True)
class _Tune:
    """One call of the command."""

    given: Config
    words: Sequence[str]
    trials: float
    distribution: str
    grid: bool

    def run(self, dry: bool) -> None:
        from bevel.report import write_report
        from bevel.tuning import charged_grid, tune

        if self.given.mesh.cpu_devices is not None:
            from bevel.cli.job import use_cpu_devices

            use_cpu_devices(self.given.mesh.cpu_devices)
        space, job = self.space, self.job
        folder, options = self.config.run.folder, self._options()
        price = self.price(space)
        print(price if self.grid else f"{self.count}\n{price}", flush=True)
        if dry:
            print("Dry run: nothing is trained on, charged or written.")
            return
        common: dict[str, Any] = {
            "score": self.score,
            "folder": folder,
            "options": options,
            "model_state": job.model.model_state,
            "user_ids": job.data.user_ids,
            "settings_of": lambda settings: self.job_of(settings).settings(),
        }
        if self.grid:
            grid: Any = space
            found, _ = charged_grid(self.trainer, grid, job.data.train, job.init(), **common)
            for trial in found:
                metric = shown_score(self.name, trial.score)
                print(f"{metric} with {trial.settings}: {trial.folder}")
                write_report(trial.folder)
            return
        print("Training. The number of trials is secret, so no progress is shown.", flush=True)
        result = tune(
            self.trainer, space, job.data.train, job.init(), expected_trials=self.trials,
            distribution=self.count.distribution, score_name=score_name(self.name), **common
        )  # fmt: skip
        if result.best is None:
            print("No trial was drawn: a Poisson number may be 0. The search was charged.")
            return
        print(f"{result.price}\nbest settings: {result.settings}")
        print(f"{shown_score(self.name, result.score)}; report: {write_report(folder)}")

    @functools.cached_property
    def count(self) -> "TrialCount":
        from bevel.tuning import TrialCount

        shape: str | float = self.distribution
        with contextlib.suppress(ValueError):
            shape = float(self.distribution)
        return TrialCount(self.trials, shape)

    @functools.cached_property
    def space(self) -> "dict[str, Distribution]":
        """The distribution of every setting that is searched."""
        space = {}
        for name, distribution in map(_distribution_of, self.words):
            if name in space:
                raise FixArgumentsError(f"--space has {name} twice: give each setting one range.")
            space[name] = distribution
        promised = [name for name in PROMISED if name in space and not self.grid]
        if promised:
            raise FixArgumentsError(
                f"--space has {promised[0]}, which is a part of what the search promises: one "
                "value holds for all trials. Write it in [plan]."
            )
        if "plan.noise_multiplier" in space and self.given.plan.epsilon is not None:
            raise FixArgumentsError(
                "--space has plan.noise_multiplier, but the noise follows from [plan] epsilon. "
                "Leave out one of them: --plan.epsilon=none --plan.noise-multiplier=1"
            )
        return space

    @functools.cached_property
    def config(self) -> Config:
        """The config of a trial, whose noise is such that the search is within epsilon."""
        given = self.given
        if self.grid or given.plan.epsilon is None or given.plan.delta is None:
            return given
        from bevel.cli.job import Job
        from bevel.cli.plan_config import plan_for
        from bevel.tuning import calibrated

        unknown = dataclasses.replace(given.plan, epsilon=None, noise_multiplier=1.0)
        config: Any = plan_for(unknown, Job(given).data)
        found = calibrated(config, self.count, epsilon=given.plan.epsilon, delta=given.plan.delta)
        plan = dataclasses.replace(unknown, noise_multiplier=found.noise_multiplier)
        return dataclasses.replace(given, plan=plan)

    @functools.cached_property
    def job(self) -> "Job":
        from bevel.cli.job import Job

        return Job(self.config)

    def job_of(self, settings: dict[str, Any]) -> "Job":
        """The job of a trial, which shares data and model with those of the other trials."""
        from bevel.cli.job import Job

        words = [f"{option_name(*name.split('.', 1))}={value}" for name, value in settings.items()]
        job = Job(with_overrides(self.config, words))
        vars(job).update(data=self.job.data, model=self.job.model, mesh=self.job.mesh)
        return job

    def trainer(self, settings: dict[str, Any]) -> "Trainer":
        return self.job_of(settings).trainer

    def price(self, space: "dict[str, Distribution]") -> "Price":
        """What all of this costs. Raises if it is more than the epsilon of the config."""
        from bevel.tuning.costliest import costliest_plan
        from bevel.tuning.grid import price_of_grid
        from bevel.tuning.search import price_of_search
        from bevel.tuning.spaces import grid_of

        def plan_of(settings: dict[str, Any]) -> Any:
            return self.trainer(settings).plan

        if self.grid:
            return price_of_grid([plan_of(chosen) for chosen in grid_of(space)], self._options())
        price = price_of_search(costliest_plan(plan_of, space), self.count, self._options())
        epsilon = self.given.plan.epsilon
        if epsilon is not None and price.epsilon > epsilon:
            raise FixArgumentsError(
                f"[plan] epsilon is {epsilon:g}, but the search costs {price}: the space has "
                "settings that epsilon depends on. Fix them, or use noise_multiplier in place of "
                "epsilon."
            )
        return price

    def _options(self) -> Any:
        """The options of the search, whose budget is by default the epsilon of the config."""
        from bevel.accounting import Budget

        plan, options = self.given.plan, self.job.run_options()
        budget = options.budget
        if budget is None and plan.epsilon is not None and plan.delta is not None:
            budget = None if self.grid else Budget(plan.epsilon, plan.delta)
        return dataclasses.replace(options, budget=budget, delta=plan.delta)

    @functools.cached_property
    def name(self) -> str:
        """The metric of the score."""
        metrics = self.job.evaluate(self.job.init())
        return next((name for name in HIGHER if name in metrics), next(iter(metrics)))

    def score(self, params: Any) -> float:
        return _sign(self.name) * self.job.evaluate(params)[self.name]


def _sign(metric: str) -> int:
    """That of a metric in its score, which is higher for better models."""
    return 1 if metric in HIGHER else -1


def score_name(metric: str) -> str:
    """What released metrics call the score."""
    return metric if _sign(metric) > 0 else f"negative_{metric}"


def shown_score(metric: str, score: float | None) -> str:
    """The metric of a score, which is None if it is not a number."""
    return f"{metric} {math.nan if score is None else _sign(metric) * score:.4g}"


def _distribution_of(word: str) -> "tuple[str, Distribution]":
    """The setting and its values in an option such as 'optimizer.learning_rate=log(1e-3,1)'."""
    from bevel.tuning import LogUniform, OneOf, Uniform

    match = SPACE.fullmatch(word)
    if match is None:
        raise FixArgumentsError(
            f"--space {word!r}: write KEY=log(low,high), KEY=uniform(low,high) or "
            "KEY=one_of(value,...), such as optimizer.learning_rate=log(1e-3,1)."
        )
    name, kind, inside = match[1].replace("-", "_"), match[2], match[3].split(",")
    if name.partition(".")[0] not in TABLES or "." not in name:
        raise FixArgumentsError(
            f"--space {word!r}: only keys of {', '.join(f'[{table}]' for table in TABLES)} can be "
            "searched, because all trials have the same data and model."
        )
    if kind == "one_of":
        return name, OneOf(*(value.strip() for value in inside))
    try:
        low, high = map(float, inside)
    except ValueError:
        raise FixArgumentsError(f"--space {word!r}: write two numbers in {kind}(...).") from None
    return name, LogUniform(low, high) if kind == "log" else Uniform(low, high)
