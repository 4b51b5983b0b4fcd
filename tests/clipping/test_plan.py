"""The plan of a call: what runs is what is planned, and what is planned is what is explained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bevel
from bevel.clipping import engine
from bevel.clipping.explain import plan_of

rng = np.random.default_rng(0)
PARAMS = {
    "table": rng.normal(size=(11, 4)).astype(np.float32),
    "w": rng.normal(size=(4, 4)).astype(np.float32),
    "gain": rng.normal(size=(4,)).astype(np.float32),
}
TOKENS = rng.integers(0, 11, size=(6, 5))


def loss(params, tokens):
    def layer(h):
        return jnp.tanh(h @ params["w"])

    h = jax.checkpoint(layer)(params["table"][tokens])
    return jnp.mean(jnp.sum((h * params["gain"][None, None]) ** 2, axis=(1, 2)))


OPTIONS = {
    "default": {},
    "norms by path": {"norms": {"table": "gram", "w": "gram"}},
    "low memory": {"memory": "low", "norms": "gram"},
    "bookkeeping": {"memory": "bookkeeping", "norms": "gram"},
    "vmap": {"engine": "vmap"},
    "a transform": {"pre_clipping_transform": lambda g: g["w"]},
    "groups": {"l2_clip_norm": {"table": 1.0, "w": 0.5, "gain": 2.0}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_runs_is_what_is_explained(name, monkeypatch):
    grad_fn = bevel.clipped_grad(loss, **({"l2_clip_norm": 1.0} | OPTIONS[name]))
    explained, *_ = plan_of(grad_fn.task, (PARAMS, TOKENS), {})
    ran = []
    original = engine.plan_call

    def recorded(*args):
        plan, leaves = original(*args)
        ran.append(plan)
        return plan, leaves

    monkeypatch.setattr(engine, "plan_call", recorded)
    jax.eval_shape(grad_fn, PARAMS, TOKENS)
    (plan,) = ran

    def decisions(plan):
        return [(c.param, c.way, c.why, plan.memory_of(c.param)) for c in plan.choices]

    assert decisions(plan) == decisions(explained)
    assert plan.groups == explained.groups and plan.layout == explained.layout
    assert plan.materialised == explained.materialised
    assert str(plan.gradient.jaxpr) == str(explained.gradient.jaxpr)
    rows = bevel.explain(grad_fn, PARAMS, TOKENS).rows
    assert [(r.way, r.why, r.memory) for r in rows] == [d[1:] for d in decisions(plan)]


def test_a_remat_is_not_undone_unless_you_ask():
    def memory(**options):
        grad_fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram", **options)
        plan, _, paths, _ = plan_of(grad_fn.task, (PARAMS, TOKENS), {})
        (w,) = (i for i, path in enumerate(paths) if "'w'" in path)
        return plan.memory_of(w)

    assert memory(memory="low") == memory(memory="boundaries") == "recomputed"
    assert memory(memory="bookkeeping") == memory(memory="microbatches") == "held"
