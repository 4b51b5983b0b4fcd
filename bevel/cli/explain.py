"""`bevel explain CONFIG.toml`: shows how each parameter's gradients are clipped."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from bevel.cli.config import Config
from bevel.cli.parsing import config_and_overrides, taken
from bevel.cli.printing import width
from bevel.training.terminal_progress import progress_of

ABOUT = """Show how each parameter's gradients are clipped and what that costs. The model
is traced, not trained.

  --json        print the table as JSON

A model or data of your own ([model] module, [data] source) is a Python file,
which this command runs: use files that you trust.

examples:
  bevel explain examples/digits.toml
  bevel explain examples/digits.toml --model.kind=mlp --plan.batch-size=512
"""


def main(arguments: Sequence[str]) -> int:
    wants_json, words = taken("--json", arguments)
    config = config_and_overrides("explain", ABOUT, words)
    shown = progress_of(sys.stderr.isatty(), sys.stderr)
    with shown.working("tracing the model"):
        explanation = _explanation(config)
    print(json.dumps(explanation.to_dict()) if wants_json else explanation.text(width()))
    return 0


def _explanation(config: Config) -> Any:
    import jax

    from bevel.cli.job import Job, example_types
    from bevel.clipping import clipped_grad, explain

    job = Job(config)
    # The explanation depends on shapes only, so the noise need not be calibrated.
    state = () if job.model.model_state is None else (job.model.model_state,)
    gradient = clipped_grad(
        job.model.loss_fn,
        has_aux=True,
        batch_argnums=1 + len(state),
        prng_argnum=2 + len(state),
        l2_clip_norm=config.plan.clip_norm,
    )
    params = jax.eval_shape(job.init)
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = example_types(job.data.spec, round(config.plan.batch_size))
    return explain(gradient, params, *state, batch, key)
