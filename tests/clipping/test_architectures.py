"""Models of many kinds: the clipped sum equals the oracle, and costs what it costs today.

`BOUNDS` holds what was measured on a CPU with jax 0.10.2 and 0.12.0, whichever is more, and up to a
tenth above it: a row that gets worse fails. FLOPs are those of products in the traced program, with
loops counted in full. Temporary memory is the compiler's. Both are relative to `jax.grad` of the
batch, and to clipping the result of `vmap(grad)`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from architectures import ARCHITECTURES, V
from compare import assert_close

import bevel
from bevel.clipping.explain import products
from bevel.sharding.axes import subprograms


class Bounds(NamedTuple):
    """At most this many times the cost of `jax.grad`, and of clipping after `vmap(grad)`."""

    flops: float
    flops_naive: float | None  # None: JAX cannot batch the gradient
    memory: float
    memory_naive: float | None


BOUNDS = {
    "ragged_experts": Bounds(1.2, None, 1.0, None),
    "dense_experts": Bounds(1.1, 1.1, 1.5, 1.1),
    "state_space": Bounds(1.1, 1.1, 1.2, 1.1),
    "lstm": Bounds(1.4, 1.4, 2.0, 1.15),
    "graph_network": Bounds(1.05, 1.05, 1.25, 1.15),
    # jax.grad has temporaries of 1 kB, and vmap(grad) of 128 MB. The products are tiny too.
    "embedding_bag": Bounds(1.9, 1.9, 4.3, 1e-3),
    "flash_attention": Bounds(1.1, 1.1, 1.1, 1.1),
    "kernel_attention": Bounds(1.1, 1.1, 1.1, 1.1),
    # Memory is 1.1 on one device. On several, kernels that are materialised copy their values.
    "unet": Bounds(1.05, 1.05, 1.45, 1.45),
}


def rows(*fast):
    """All names. The fast suite runs those in `fast`: compiling the others takes long."""
    return [
        pytest.param(name, marks=() if name in fast else pytest.mark.full) for name in ARCHITECTURES
    ]


@functools.cache
def case(name):
    """The loss and its arguments."""
    architecture = ARCHITECTURES[name]
    return architecture.loss, *architecture.arguments()


def naive(loss):
    """The clipped sum from the gradients of all examples."""

    def one(params, example):
        gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[None], example))
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        factor = jnp.minimum(1.0, 1.0 / norm)
        return jax.tree.map(lambda g: factor * g, gradient)

    def clipped(params, batch):
        gradients = jax.vmap(one, (None, 0))(params, batch)
        return jax.tree.map(lambda g: jnp.sum(g, axis=0), gradients)

    return clipped


def cost(function, *args):
    traced = jax.jit(function).trace(*args)
    memory = traced.lower().compile().memory_analysis()
    return products(traced.jaxpr), memory.temp_size_in_bytes


@pytest.mark.parametrize("name", rows("ragged_experts", "graph_network", "flash_attention"))
def test_equals_the_oracle(name):
    loss, params, batch = case(name)
    clip_norm = oracle.middle_norm(loss, params, batch)  # clips half of the examples
    expected = oracle.clipped_sum(loss, params, batch, clip_norm=clip_norm)
    fn = bevel.clipped_grad(loss, l2_clip_norm=clip_norm, return_grad_norms=True)
    got, aux = jax.jit(fn)(params, batch)
    assert_close(got, expected.grad, 3e-4)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=3e-4)


def measured(name):
    loss, params, batch = case(name)
    flops, memory = cost(bevel.clipped_grad(loss, l2_clip_norm=1.0), params, batch)
    plain = cost(jax.grad(loss), params, batch)
    try:
        slow = cost(naive(loss), params, batch)
    except NotImplementedError:
        return Bounds(flops / plain[0], None, memory / plain[1], None)
    return Bounds(flops / plain[0], flops / slow[0], memory / plain[1], memory / slow[1])


@pytest.mark.parametrize("name", rows("ragged_experts", "flash_attention"))
def test_costs_at_most_what_it_did(name):
    for what, got, bound in zip(Bounds._fields, measured(name), BOUNDS[name], strict=True):
        assert (got is None) == (bound is None), f"{what}: whether JAX can batch this has changed"
        assert got is None or got <= bound, f"{what}: {got:.3g} times, {bound} allowed"


# What `explain` says about two of them.


def explained(name):
    loss, params, batch = case(name)
    return bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0), params, batch)


def test_experts_run_one_example_at_a_time_and_explain_says_so():
    explanation = explained("ragged_experts")
    uses = {row.path.rsplit("[", 1)[1]: row.uses for row in explanation.rows}
    assert uses == {"'router']": "1 dense", "'up']": "1 ragged", "'down']": "1 ragged"}
    assert [loop.operation for loop in explanation.loops] == ["ragged_dot_general"] * 2
    notes = [line for line in str(explanation).splitlines() if "one example at a time" in line]
    assert [note.split(":")[0] for note in notes] == [
        "ragged_dot_general at tests/architectures.py"
    ] * 2


def largest(jaxpr):
    """Elements of the largest array in a program."""
    sizes = [np.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars]
    return max([0, *sizes, *(largest(body) for e in jaxpr.eqns for body in subprograms(e.params))])


def test_no_array_has_a_table_for_each_example():
    loss, params, batch = case("embedding_bag")
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    (row,) = [row for row in explained("embedding_bag").rows if "table" in row.path]
    assert (row.uses, row.way, row.memory) == ("1 lookup", "gram", "held")
    assert row.held < 1e4  # bytes
    assert largest(jax.make_jaxpr(fn)(params, batch).jaxpr) == params["table"].size
    assert cost(fn, params, batch)[1] < V  # bytes: less than one column of the table
