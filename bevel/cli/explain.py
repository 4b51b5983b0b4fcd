"""`bevel explain CONFIG.toml`: shows how each parameter's gradients are clipped."""

from collections.abc import Sequence

from bevel.cli.parsing import config_and_overrides

ABOUT = """Show how each parameter's gradients are clipped and what that costs. Nothing is trained.

A model of your own ([model] module) is a Python file that this command runs: use files you trust.

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
    print(explain(gradient, params, *state, batch, key))
    return 0
