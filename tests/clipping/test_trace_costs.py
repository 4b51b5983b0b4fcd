"""How long tracing takes, counted in equations: a promise relative to `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_models import models

import bevel
from bevel.sharding.axes import subprograms

DEPTH = 12


def equations(jaxpr, seen):
    """Equations of a program; one that several calls share was traced once, and counts once."""
    if id(jaxpr) in seen:
        return 0
    seen[id(jaxpr)] = jaxpr  # held, so that no other program takes its identity
    inner = [body for eqn in jaxpr.eqns for body in subprograms(eqn.params)]
    return len(jaxpr.eqns) + sum(equations(body, seen) for body in inner)


def inlined_equations(jaxpr):
    """Equations of a program with all calls inlined, which is what is compiled."""
    inner = [body for eqn in jaxpr.eqns for body in subprograms(eqn.params)]
    return len(jaxpr.eqns) + sum(map(inlined_equations, inner))


class NoNumbers(models.Random):
    """Arrays that cost nothing: a program is traced for their shapes alone."""

    def values(self, *shape, scale=1.0):
        return np.broadcast_to(np.float32(0), shape)


def counts(layers, depth, **changes):
    """Equations of `jax.grad` and of the clipped gradient of a GPT."""
    size = models.GPT_TINY._replace(depth=depth, **changes)
    case = models.gpt(jnp.dtype("bfloat16"), batch_size=32, size=size, layers=layers)
    found = []
    # The models are written for JAX's defaults.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for function in (jax.grad(case.loss), bevel.clipped_grad(case.loss, l2_clip_norm=1.0)):
            jaxpr = jax.jit(function).trace(*case.arguments).jaxpr.jaxpr
            found.append(equations(jaxpr, {}))
    return found


def test_shared_programs_count_once():
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    once, twice = (
        equations(jax.make_jaxpr(f)(1.0).jaxpr, {}) for f in (inner, lambda x: inner(inner(x)))
    )
    assert (once, twice) == (3, 4)


@pytest.mark.parametrize("layers, most", [("loop", 2.0), ("scan", 3.0)])
def test_the_program_of_gpt_2_is_few_times_that_of_jax_grad(layers, most, monkeypatch):
    monkeypatch.setattr(models, "Random", NoNumbers)
    plain, private = counts(layers, **models.GPT_2_SMALL._asdict())
    assert plain < private <= most * plain


@pytest.mark.parametrize("layers, most", [("loop", 2.0), ("scan", 4.0)])
def test_the_program_of_a_small_model_is_few_times_that_of_jax_grad(layers, most):
    plain, private = counts(layers, DEPTH)
    assert plain < private <= most * plain


def test_a_scan_costs_the_same_at_any_depth():
    (plain, private), (plain_deep, private_deep) = counts("scan", DEPTH), counts("scan", 4 * DEPTH)
    assert plain_deep == plain
    # Helpers are shared by parameters of one shape, which depth may make alike: a few equations
    # more or less, and not one for each layer.
    assert abs(private_deep - private) < 3 * DEPTH


def test_a_layer_of_a_loop_adds_few_times_what_it_adds_to_jax_grad():
    (plain, private), (plain_deep, private_deep) = counts("loop", 2), counts("loop", 4)
    assert 0 < private_deep - private <= 2.5 * (plain_deep - plain)


FLOAT32 = jnp.dtype("float32")
SMALL = models.GPT_TINY._replace(depth=4)
COMPILED = {
    "gpt in a loop": (lambda: models.gpt(FLOAT32, batch_size=16, size=SMALL), 5.3),
    "gpt in a scan": (lambda: models.gpt(FLOAT32, batch_size=16, size=SMALL, layers="scan"), 5.2),
    "vit": (lambda: models.vit(FLOAT32, batch_size=16, **models.VIT_TINY | {"layers": 4}), 9.5),
}


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_compiled_is_few_times_what_is_for_jax_grad(name):
    """Norms stand once in the program. Their last steps are taken for all parameters together."""
    make, most = COMPILED[name]
    case = make()
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        plain, private = (
            inlined_equations(jax.jit(function).trace(*case.arguments).jaxpr.jaxpr)
            for function in (jax.grad(case.loss), bevel.clipped_grad(case.loss, l2_clip_norm=1.0))
        )
    assert plain < private <= most * plain
