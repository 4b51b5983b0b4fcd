"""The second pass over the remats of a loss recomputes one of them at a time."""

import jax
import jax.numpy as jnp
import pytest
from clipping.test_memory import LONG, WIDE, in_loop, in_scan
from clipping.uses.test_taps import draw, squared
from earlier_compilers import COPIES
from jax import lax

import bevel
from bevel.clipping.explain import plan_of, products


def plan(fun, params, batch, **options):
    fn = bevel.clipped_grad(fun, l2_clip_norm=1.0, memory="boundaries", **options)
    return plan_of(fn.task, (params, batch), {})[0]


# Few layers hold little compared with what the norms of one layer take.
@pytest.mark.parametrize("loss, layers, times", [(in_scan, 24, 2.3), (in_loop, 4, 2.5)])
def test_it_costs_one_recomputed_pass_and_two_boundaries(loss, layers, times):
    params = WIDE | {name: jnp.tile(WIDE[name], (layers // 4, 1, 1)) for name in ("up", "down")}
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, memory="boundaries")
    plain, private = (jax.jit(f).trace(params, LONG) for f in (jax.grad(loss), fn))
    assert products(private.jaxpr) <= 1.75 * products(plain.jaxpr)  # with the norms, twice
    temporary = [f.lower().compile().memory_analysis().temp_size_in_bytes for f in (plain, private)]
    assert temporary[1] <= times * COPIES * temporary[0]


def test_only_remats_with_uses_are_held():
    def loss(p, x):
        h = jax.checkpoint(lambda x: jnp.sin(x) * 2.0)(x)
        return squared(jax.checkpoint(lambda h, w: jnp.tanh(h @ w))(h, p))

    (boundary,) = plan(loss, draw(64, 64), LONG[:, 0], norms="outer").boundaries
    assert len(boundary.eqn.invars) == 2


def test_a_parameter_that_is_also_used_outside_is_held():
    def loss(p, x):
        h = jax.checkpoint(lambda h, w: jnp.tanh(h @ w))(x, p)
        return squared(h @ p)

    found = plan(loss, draw(64, 64), LONG, norms="gram")
    assert found.boundaries == [] and found.memory_of(0) == "held"


def test_a_parameter_that_all_steps_share_is_held():
    def loss(p, x):
        step = lambda h, _: (jax.checkpoint(lambda h, w: jnp.tanh(h @ w))(h, p), None)  # noqa: E731
        return squared(lax.scan(step, x, None, 3)[0])

    assert plan(loss, draw(64, 64), LONG, norms="gram").memory_of(0) == "held"
