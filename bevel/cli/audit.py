"""`bevel audit CONFIG.toml` or `bevel audit RUN`: attacks a run, and compares with its promise."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.config import Config

EXAMPLES = """examples:
  bevel audit examples/digits.toml
  bevel audit examples/digits.toml --canaries 5000 --plan.epsilon=2
  bevel audit examples/digits.toml --attack last-model --significance 0.01
  bevel audit runs/digits

With a config, it trains once with canaries and prints a lower bound on epsilon. This uses the data
like any other run: pass --folder to charge it in a ledger. With a run folder, it trains nothing and
looks in all released files for traces of noise, raw values and secrets.

The exit code is 1 if the bound exceeds what was promised, or if there is a trace.
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bevel audit",
        description="Attack a training run, and compare what it loses with what it promises.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("target", type=Path, help="a config file, or a run folder")
    parser.add_argument("--canaries", type=int, default=1000, help="by default 1000")
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
    parser.add_argument("--folder", type=Path, help="keep and charge the audited run here")
    options, overrides = parser.parse_known_args(arguments)
    if options.target.is_dir():
        if overrides:
            parser.error(f"{overrides[0]} is for configs, but {options.target} is a run folder.")
        return _audit_folder(options.target)
    from bevel.cli.parsing import config_and_overrides

    config = config_and_overrides("audit", EXAMPLES, [str(options.target), *overrides])
    return _audit_config(config, options)


def _audit_folder(folder: Path) -> int:
    from bevel.auditing import released_traces

    traces = released_traces(folder)
    if not traces:
        print(f"audit PASSED: no trace of noise, raw values or secrets under {folder}/released")
        return 0
    print(f"audit FAILED: {len(traces)} private entries under {folder}/released")
    for trace in traces:
        print(f"  {trace}")
    return 1


def _audit_config(config: Config, options: argparse.Namespace) -> int:
    from bevel.auditing import audit
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.training import RunOptions

    if config.mesh.cpu_devices is not None:
        use_cpu_devices(config.mesh.cpu_devices)
    job = Job(config)
    result = audit(
        job.trainer,
        job.data.train,
        job.init(),
        canaries=options.canaries,
        attack="last model" if options.attack == "last-model" else "every step",
        delta=config.plan.delta,
        significance=options.significance,
        user_ids=job.data.user_ids,
        seed=config.run.test_seed,
        model_state=job.model.model_state,
        folder=options.folder,
        options=RunOptions(
            progress=False,
            compilations=config.run.compilations,
            checkpoint_every=config.run.checkpoint_every,
            ledger=config.run.ledger,
        ),
    )
    print(result)
    return 0 if result.passed else 1
