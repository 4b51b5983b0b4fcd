"""`bevel train CONFIG.toml`: a private model from a config file."""

from collections.abc import Sequence
from pathlib import Path

from bevel.cli.config import Config
from bevel.cli.parsing import config_and_overrides

ABOUT = """Train by a config file, or go on where a run ended.

Kill it at any moment and start it again, on another mesh too: it goes on from its last checkpoint,
and nothing is spent twice. Ctrl-C saves and ends with code 130. A run does not go on with other
data or another plan; a new learning rate or loss has to be accepted (--accept).

examples:
  bevel train examples/digits.toml
  bevel train examples/digits.toml --plan.epsilon=2 --run.folder=runs/two
  bevel train examples/digits.toml --optimizer.learning_rate=0.3 --accept optimizer.learning_rate
  bevel launch --processes 2 --devices-per-process 4 -- bevel train examples/digits.toml
"""


def main(arguments: Sequence[str]) -> int:
    words = [
        word.replace("--accept", "--run.accept", 1) if _is_accept(word) else word
        for word in arguments
    ]
    _train(config_and_overrides("train", ABOUT, words))
    return 0


def _is_accept(word: str) -> bool:
    return word == "--accept" or word.startswith("--accept=")


def _train(config: Config) -> Path | None:
    """Runs a config to its end. The report of the run; None in a process that is not the first."""
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.processes import join
    from bevel.report import write_report
    from bevel.training.process_agreement import together

    me = join()
    if me.count == 1 and config.mesh.cpu_devices is not None:
        use_cpu_devices(config.mesh.cpu_devices)
    job = Job(config)
    state = job.fit(folder=config.run.folder)
    accuracy = job.final_accuracy(state)
    report = None
    if me.index == 0:
        report = write_report(config.run.folder)
        print(f"test accuracy {accuracy:.2%} after {int(state.step)} steps; report: {report}")
    together("report")  # at their end processes wait for each other for a while only
    return report
