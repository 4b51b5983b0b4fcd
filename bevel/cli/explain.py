"""`bevel explain CONFIG.toml`: how gradients are clipped, parameter by parameter."""

from collections.abc import Sequence

from bevel.cli.parsing import config_and_overrides

ABOUT = """How gradients are clipped, parameter by parameter, and what that costs. Nothing runs.

examples:
  bevel explain examples/digits.toml
  bevel explain examples/digits.toml --model.kind=mlp --plan.batch-size=512
"""


def main(arguments: Sequence[str]) -> int:
    config = config_and_overrides("explain", ABOUT, arguments)
    import jax

    from bevel.cli.job import Job, example_types
    from bevel.clipping import clipped_grad, explain

    job = Job(config)
    loss_fn = job.model.loss_fn
    # Only shapes count here, so nothing is calibrated.
    gradient = clipped_grad(
        loss_fn,
        has_aux=True,
        batch_argnums=1,
        prng_argnum=2,
        l2_clip_norm=config.plan.clip_norm,
    )
    params = jax.eval_shape(job.init)
    key = jax.eval_shape(lambda: jax.random.key(0))
    rows = round(config.plan.batch_size)
    batch = example_types(job.data, rows)
    print(explain(gradient, params, batch, key))
    return 0
