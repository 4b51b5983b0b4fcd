"""`bevel plan`: proposes the numbers of a run for a privacy budget, and shows the plan."""

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.checks import nearest
from bevel.cli.command_parser import CommandParser
from bevel.cli.config import OptimizerTable, PlanTable
from bevel.cli.parsing import config_and_overrides
from bevel.errors import FixArgumentsError
from bevel.output_files import text_before, write_file

if TYPE_CHECKING:
    from bevel.choosing import Proposal

ABOUT = """Propose the batch size, steps, clip norm and learning rate for a privacy budget,
or show the plan if you give them. Nothing is trained, and no record is looked at.

What you give is kept, and what you leave out is proposed, with the reason. Of a
data set only the number of training records (or of users) matters.

Data of your own ([data] source) may be a Python file, which this command runs:
use files that you trust."""
EXAMPLES = """examples:
  bevel plan --epsilon 3 --examples 60000
  bevel plan --epsilon 3 --examples 60000 --epochs 100 --plot noise.svg
  bevel plan config.toml --epsilon 2 --write config.toml
  bevel plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 \\
      --steps 2000 --mechanism bandmf --bands 16

docs/choosing.md explains all of these numbers."""
# Stand for keys that a config leaves out.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "plan": {"batch_size": math.nan, "steps": -1, "clip_norm": math.nan},
    "optimizer": {"learning_rate": math.nan},
}
# The keys of a config that are also options without the name of their table: type and help.
OPTIONS: dict[str, dict[str, tuple[Any, str]]] = {
    "plan": {
        "epsilon": (float, "privacy budget of the run; up to 1 is strong, above 3 weak"),
        "delta": (float, "by default well below one over the number of examples"),
        "batch_size": (float, "expected number of examples (or users) in a batch"),
        "steps": (int, "number of steps of the run"),
        "clip_norm": (float, "bound on the norm of one example's gradient"),
        "mechanism": (("dpsgd", "bandmf", "blt", "none"), "independent or correlated noise"),
        "noise_multiplier": (float, "instead of epsilon"),
        "sampling": (str, "how batches are sampled"),
        "relation": (str, "which data sets are neighbours"),
        "adapt_clip_norm_to": (float, "quantile of the gradient norms that the clip norm follows"),
        "bands": (int, "bandmf: steps over which noise is correlated"),
        "min_sep": (int, "blt: steps between two uses of an example"),
        "buffers": (int, "blt: noise buffers"),
    },
    "optimizer": {
        "learning_rate": (float, "learning rate of the optimizer"),
        "momentum": (float, "of sgd, for the learning rate"),
    },
}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What was given on the command line and in the config. NaN and -1 stand for the rest."""

    plan: PlanTable
    optimizer: OptimizerTable
    units: int
    unit: str
    parameters: int | None


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options, overrides = parser.parse_known_args(list(arguments))
    for word in overrides:  # only a config has tables whose keys can be overridden
        if word.startswith("-") and ("." not in word or options.config is None):
            known = [f"--{name.replace('_', '-')}" for name in vars(options)]
            parser.error(f"unknown option {word}{nearest(word, known)}")
    asked = _from_options(options) if options.config is None else _from_config(options, overrides)
    plan, left_out = asked.plan, [*_left_out(asked.plan)]
    reason = _why_not_proposed(plan)
    if reason is None:
        _propose(asked, options, show_plan=not {"batch_size", "steps"} & {*left_out})
        return 0
    missing = [name for name in ("batch_size", "steps") if name in left_out]
    if missing:
        raise FixArgumentsError(f"{' and '.join(missing)} must be given: {reason}")
    for name in ("plot", "write", "json", "epochs"):
        if getattr(options, name):
            raise FixArgumentsError(f"--{name} needs a proposal, but there is none: {reason}")
    clip_norm = 1.0 if math.isnan(plan.clip_norm) else plan.clip_norm
    _show_plan(dataclasses.replace(plan, clip_norm=clip_norm), asked)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "plan",
        ABOUT,
        EXAMPLES,
    )
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG.toml", help="takes what it says as given")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--examples", type=int, metavar="N", help="number of training examples")
    size.add_argument("--users", type=int, metavar="N", help="protect users: their number")
    for names in OPTIONS.values():
        for name, (kind, text) in names.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(kind, tuple):
                add(option, choices=kind, help=text)
            else:
                add(option, type=kind, metavar="X", help=text)
    add("--epochs", type=float, metavar="X", help="passes over the data, instead of the steps")
    add("--optimizer", choices=("sgd", "adam", "dp_adam"), help="for the learning rate")
    add("--parameters", type=int, metavar="N", help="trained parameters, for the learning rate")
    add("--plot", metavar="FILE.svg", help="draw the noise against the batch size")
    add("--write", metavar="FILE.toml", help="put the numbers into this config")
    add("--json", action="store_true", help="print the proposal as JSON")
    return parser


def _given(options: argparse.Namespace, table: str) -> dict[str, Any]:
    """The values of one table that were given as options."""
    values = {name: getattr(options, name) for name in OPTIONS[table]}
    return {name: value for name, value in values.items() if value is not None}


def _from_options(options: argparse.Namespace) -> _Asked:
    units = options.examples if options.users is None else options.users
    if units is None:
        raise FixArgumentsError("the size of the data is missing: write --examples N, or a config.")
    plan = PlanTable(**(LEFT_OUT["plan"] | _given(options, "plan")))
    name: dict[str, Any] = {"name": options.optimizer} if options.optimizer else {}
    optimizer = OptimizerTable(**(LEFT_OUT["optimizer"] | name | _given(options, "optimizer")))
    unit = "example" if options.users is None else "user"
    return _Asked(plan, optimizer, units, unit, options.parameters)


def _from_config(options: argparse.Namespace, overrides: Sequence[str]) -> _Asked:
    """The config with its overrides, and the size of its data unless an option says it."""
    words = [options.config]
    for table in OPTIONS:
        for name, value in _given(options, table).items():
            words.append(f"--{table}.{name.replace('_', '-')}={value}")
    if options.optimizer:
        words.append(f"--optimizer.name={options.optimizer}")
    config = config_and_overrides("plan", ABOUT, [*words, *overrides], LEFT_OUT)
    units = options.examples if options.users is None else options.users
    unit = "example" if options.users is None else "user"
    parameters = options.parameters
    if units is None:
        import jax

        from bevel.cli.job import Job

        job = Job(config)
        units = job.data.units
        unit = "example" if job.data.user_ids is None else "user"
        if parameters is None:
            shapes = jax.tree.leaves(jax.eval_shape(job.init))
            parameters = sum(math.prod(x.shape) for x in shapes)
    return _Asked(config.plan, config.optimizer, units, unit, parameters)


def _left_out(table: PlanTable | OptimizerTable) -> dict[str, None]:
    """The names of the values that stand for keys that were left out, each with None."""
    left_out = LEFT_OUT["plan" if isinstance(table, PlanTable) else "optimizer"]
    return {
        name: None
        for name, value in left_out.items()
        if getattr(table, name) == value or math.isnan(getattr(table, name))
    }


def _why_not_proposed(plan: PlanTable) -> str | None:
    if plan.mechanism != "dpsgd":
        return f"bevel proposes numbers for the mechanism dpsgd only, not for {plan.mechanism}."
    if plan.sampling not in (None, "poisson"):
        return f"bevel proposes numbers for sampling poisson only, not for {plan.sampling}."
    if plan.noise_multiplier is not None:
        return "bevel proposes numbers for an epsilon, not for a noise_multiplier."
    return None


def _propose(asked: _Asked, options: argparse.Namespace, *, show_plan: bool) -> None:
    from bevel.choosing import Request, propose

    if asked.plan.epsilon is None:
        raise FixArgumentsError(
            "epsilon is missing: write --epsilon, such as 3. Up to 1 is a strong guarantee, up to "
            "3 a moderate one, and above that a weak one (docs/choosing.md)."
        )
    given = dataclasses.asdict(asked.plan) | _left_out(asked.plan)
    rate = asked.optimizer.learning_rate
    proposal = propose(
        Request(
            num_units=asked.units,
            unit=asked.unit,
            epochs=options.epochs,
            learning_rate=None if math.isnan(rate) else rate,
            parameters=asked.parameters,
            optimizer=asked.optimizer.name,
            momentum=asked.optimizer.momentum,
            relation=asked.plan.relation or "ADD_OR_REMOVE_ONE",
            **{name: given[name] for name in ("epsilon", "delta", "batch_size", "steps")},
            clip_norm=given["clip_norm"],
        )
    )
    if options.json:
        from bevel.cli.plan_text import proposal_json

        print(json.dumps(proposal_json(proposal), indent=2))
    else:
        from bevel.cli.plan_text import proposal_text

        print(proposal_text(proposal))
        if show_plan:
            names = ("delta", "batch_size", "steps", "clip_norm")
            values: dict[str, Any] = {name: proposal.choices[name].value for name in names}
            _show_plan(dataclasses.replace(asked.plan, **values), asked)
    _write(proposal, options)


def _write(proposal: "Proposal", options: argparse.Namespace) -> None:
    if options.plot:
        from bevel.choosing.chart import write_chart

        write_chart(proposal, options.plot)
    if options.write:
        from bevel.cli.plan_text import config_tables
        from bevel.cli.toml_tables import with_tables

        path = Path(options.write)
        text = with_tables(text_before(path), config_tables(proposal), str(path))
        write_file(path, text.encode())
    for path in filter(None, (options.plot, options.write)):
        if not options.json:
            print(f"wrote {path}")


def _show_plan(plan: PlanTable, asked: _Asked) -> None:
    from bevel.cli.plan_config import plan_config

    made = plan_config(plan, asked.units, unit=asked.unit, examples_per_user=plan.examples_per_user)
    made.make().describe(plan.delta)
