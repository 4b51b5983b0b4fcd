"""`bevel plan`: from a budget to a table of what it buys."""

import dataclasses
from collections.abc import Sequence

from bevel.cli.config import PlanTable
from bevel.cli.parsing import config_and_overrides, parsed

ABOUT = """What a budget buys: noise, batches and cost, as a table. Nothing is trained.

Name a config for its plan, or give the numbers.

examples:
  bevel plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 --steps 2000
  bevel plan --mechanism bandmf --bands 16 --epsilon 3 --delta 1e-5 --examples 60000 \\
      --batch-size 1024 --steps 2000
  bevel plan examples/digits.toml --plan.epsilon=1
"""


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The plan, and for how many."""

    plan: PlanTable
    examples: int
    """How many there are to train on."""


def main(arguments: Sequence[str]) -> int:
    from bevel.cli.data_sets import data_set
    from bevel.cli.plans import plan_config

    if arguments and not arguments[0].startswith("-"):
        config = config_and_overrides("plan", ABOUT, arguments)
        asked = _Asked(config.plan, len(data_set(config.data).x_train))
    else:
        asked = parsed(_Asked, "plan", ABOUT, arguments)
    plan_config(asked.plan, asked.examples).make().describe(asked.plan.delta)
    return 0
