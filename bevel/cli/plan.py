"""`bevel plan`: shows the plan for a privacy budget as a table."""

import dataclasses
from collections.abc import Sequence

from bevel.cli.config import PlanTable
from bevel.cli.parsing import config_and_overrides

ABOUT = """Show the noise, batches and cost of a privacy budget. Nothing is trained.

Pass a config to show its plan, or pass the numbers as options.

examples:
  bevel plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 --steps 2000
  bevel plan --mechanism bandmf --bands 16 --epsilon 3 --delta 1e-5 --examples 60000 \\
      --batch-size 1024 --steps 2000
  bevel plan examples/digits.toml --plan.epsilon=1
"""


@dataclasses.dataclass(frozen=True)
class _Request:
    """A plan and the size of its training set."""

    plan: PlanTable
    examples: int
    """Number of training examples."""


def main(arguments: Sequence[str]) -> int:
    from bevel.cli.plan_config import plan_config, plan_for
    from bevel.datasets import data_set

    if arguments and not arguments[0].startswith("-"):
        config = config_and_overrides("plan", ABOUT, arguments)
        plan_for(config.plan, data_set(config.data)).make().describe(config.plan.delta)
        return 0
    else:
        import tyro

        request = tyro.cli(
            _Request,
            prog="bevel plan",
            description=ABOUT.strip(),
            args=list(arguments),
            config=(tyro.conf.OmitArgPrefixes,),
        )
    plan_config(request.plan, request.examples).make().describe(request.plan.delta)
    return 0
