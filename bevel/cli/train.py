"""`bevel train CONFIG.toml`: trains a private model from a config file."""

import re
from collections.abc import Sequence

from bevel.cli.config import Config
from bevel.cli.parsing import config_and_overrides

ABOUT = """Train from a config file, or resume a run.

You can kill the command at any time and start it again, even on another mesh. It resumes from the
last checkpoint, and nothing is spent twice. Ctrl-C saves the state and exits with code 130. A run
does not resume with other data or another plan. A new learning rate or loss needs --accept.
--dry-run says what will happen (privacy, memory, time, disk, folder) and changes nothing.

examples:
  bevel train examples/digits.toml
  bevel train examples/digits.toml --dry-run
  bevel train examples/digits.toml --plan.epsilon=2 --run.folder=runs/two
  bevel train examples/digits.toml --optimizer.learning_rate=0.3 --accept optimizer.learning_rate
  bevel launch --processes 2 --devices-per-process 4 -- bevel train examples/digits.toml
"""


def main(arguments: Sequence[str]) -> int:
    words = [re.sub("^--accept(?==|$)", "--run.accept", word) for word in arguments]
    if "--dry-run" in words:
        from bevel.cli import dry_run

        return dry_run.main([word for word in words if word != "--dry-run"], ABOUT)
    _train(config_and_overrides("train", ABOUT, words))
    return 0


def _train(config: Config) -> None:
    """Trains a config to its end. The first process writes the report."""
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.processes import join
    from bevel.report import write_report
    from bevel.training.process_agreement import barrier

    process = join()
    if process.count == 1 and config.mesh.cpu_devices is not None:
        use_cpu_devices(config.mesh.cpu_devices)
    job = Job(config)
    state = job.fit(folder=config.run.folder)
    accuracy = job.final_accuracy(state)
    if process.index == 0:
        report = write_report(config.run.folder)
        print(f"test accuracy {accuracy:.2%} after {int(state.step)} steps; report: {report}")
    barrier("report")  # at exit, processes wait for each other only for a limited time
