"""`bevel audit CONFIG.toml` or `bevel audit RUN`: attacks a run, and compares with its promise."""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.command_parser import CommandParser
from bevel.cli.config import Config

EXAMPLES = """examples:
  bevel audit examples/digits.toml
  bevel audit examples/digits.toml --canaries 5000 --plan.epsilon=2
  bevel audit examples/digits.toml --attack last-model --significance 0.01
  bevel audit runs/digits

With a config, it trains once with canaries and prints a lower bound on epsilon. It also measures
how far single examples move the clipped sum, and looks for traces in the files of the run. This
uses the data like any other run, and is charged: in the ledger of the config, or in the run's own.
The run is kept next to that of the config, in a folder such as runs/digits-audit, or
runs/digits-audit-2 if there is one. What was found is in its private/audit.json, which is not for
others.

A model or data of your own ([model] module, [data] source) is a Python file, which this command
runs: use files that you trust.

With a run folder, it trains nothing and looks in all released files for traces of noise, raw values
and secrets.

The exit code is 1 if the bound exceeds what was promised, an example contributes more than its
bound, or there is a trace.
"""
MOST_CANARIES = 1000  # unless --canaries asks for more


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "audit",
        "Attack a training run, and compare what it loses with what it promises.",
        EXAMPLES,
    )
    parser.add_argument("target", type=Path, help="a config file, or a run folder")
    parser.add_argument(
        "--canaries",
        type=int,
        help=f"by default {MOST_CANARIES}, or fewer: at most one for each parameter, and for every "
        "two records (or users)",
    )
    parser.add_argument(
        "--attack",
        choices=["every-step", "last-model"],
        default="every-step",
        help="what the attacker sees; by default the noised sum of every step",
    )
    parser.add_argument(
        "--significance",
        type=float,
        default=0.05,
        help="the probability with which the bound may be wrong; by default 0.05",
    )
    parser.add_argument(
        "--folder", type=Path, help="where to keep the audited run; by default next to the run"
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    options, overrides = parser.parse_known_args(arguments)
    if options.target.is_dir():
        if overrides:
            parser.error(f"{overrides[0]} is for configs, but {options.target} is a run folder.")
        return _audit_folder(options.target, options.json)
    from bevel.cli.parsing import config_and_overrides

    config = config_and_overrides("audit", EXAMPLES, [str(options.target), *overrides])
    return _audit_config(config, options)


def _audit_folder(folder: Path, as_json: bool) -> int:
    from bevel.auditing import released_traces

    traces = released_traces(folder)
    if as_json:
        found = [dataclasses.asdict(trace) for trace in traces]
        print(json.dumps({"passed": not traces, "traces": found}))
        return 1 if traces else 0
    if not traces:
        print(f"audit PASSED: no trace of noise, raw values or secrets under {folder}/released")
        return 0
    print(f"audit FAILED: {len(traces)} private entries under {folder}/released")
    for trace in traces:
        print(f"  {trace}")
    return 1


def _audit_config(config: Config, options: argparse.Namespace) -> int:
    import jax

    from bevel.auditing import audit, check_sensitivity
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.training import RunOptions

    if config.mesh.cpu_devices is not None:
        use_cpu_devices(config.mesh.cpu_devices)
    job = Job(config)
    data, params = job.data.train, job.init()
    folder = options.folder or _new_folder(config.run.folder)
    canaries = options.canaries
    if canaries is None:  # half of the records stay, and each canary has a coordinate of its own
        coordinates = sum(leaf.size for leaf in jax.tree.leaves(params))
        canaries = min(MOST_CANARIES, job.data.units // 2, coordinates)
    result = audit(
        job.trainer,
        data,
        params,
        canaries=canaries,
        attack="last model" if options.attack == "last-model" else "every step",
        delta=config.plan.delta,
        significance=options.significance,
        user_ids=job.data.user_ids,
        seed=config.run.test_seed,
        model_state=job.model.model_state,
        folder=folder,
        options=RunOptions(
            progress=False,
            compilations=config.run.compilations,
            checkpoint_every=config.run.checkpoint_every,
            ledger=config.run.ledger,
            anchor=config.run.anchor if config.run.ledger else None,
        ),
    )
    state, user_ids = job.model.model_state, job.data.user_ids
    checked = check_sensitivity(job.trainer, data, params, model_state=state, user_ids=user_ids)
    result = dataclasses.replace(result, sensitivity=checked)
    record = result.save(folder)
    print(json.dumps(result.to_dict()) if options.json else f"{result}\nrecord: {record}")
    return 0 if result.passed else 1


def _new_folder(run_folder: str) -> Path:
    """A folder next to that of the run: an audit draws new canaries, so it cannot resume."""
    names = itertools.chain(
        [f"{run_folder}-audit"], (f"{run_folder}-audit-{k}" for k in itertools.count(2))
    )
    return next(path for path in map(Path, names) if not path.exists())
