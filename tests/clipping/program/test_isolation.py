"""Equations that could see other examples are rewritten or refused.

`test_coupling.py` has the attacks.
"""

import inspect

import jax
import jax.extend.core.primitives
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive

import bevel
from bevel.clipping.program.isolation import is_jax_primitive, isolate_examples
from bevel.errors import FixLossError
from bevel.sharding.axes import subprograms

W = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
X = np.asarray(np.random.default_rng(1).normal(size=(16, 6)), np.float32)


def plain(w, x):
    return jnp.sum((x @ w) ** 2)


def run(loss, x=X, **options):
    return bevel.clipped_grad(loss, l2_clip_norm=1.0, **options)(W, x)


def equations(jaxpr, around=()):
    """Every equation of a program, with the names of those around it."""
    for eqn in jaxpr.eqns:
        yield eqn, around
        for inner in subprograms(eqn.params):
            yield from equations(inner, (*around, eqn.primitive.name))


def test_an_ordinary_program_is_left_as_it_is():
    def loss(w, x):
        def step(h, _):
            return lax.cond(jnp.sum(h) > 0, jnp.sin, jax.nn.gelu, h), None

        return jnp.sum(jax.checkpoint(lambda h: lax.scan(step, h, length=2)[0])(x @ w))

    program = jax.make_jaxpr(jax.grad(jax.jit(loss)))(W, X[:1])
    assert isolate_examples(program) is program


def test_primitives_of_jax_are_told_from_those_of_others():
    own = [p for p in vars(jax.extend.core.primitives).values() if isinstance(p, Primitive)]
    assert len(own) > 100 and all(map(is_jax_primitive, own))
    assert not is_jax_primitive(Primitive("sin"))


def test_what_is_not_a_loop_already_becomes_one():
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()  # makes the function below known

    def loss(w, x):
        square = x.T @ x + jnp.eye(6)
        out = (jax.ShapeDtypeStruct((6, 6), x.dtype), jax.ShapeDtypeStruct((), jnp.int32))
        call = jax.ffi.ffi_call("lapack_spotrf_ffi", out, vmap_method="broadcast_all")
        return plain(w, jnp.tril(call(square, uplo=np.uint8(ord("L")))[0]))

    fn = bevel.clipped_grad(loss, l2_clip_norm=1e9)
    program = jax.make_jaxpr(fn)(W, X)
    calls = [
        (e, around) for e, around in equations(program.jaxpr) if e.primitive.name == "ffi_call"
    ]
    assert calls
    for eqn, around in calls:
        assert eqn.invars[0].aval.shape == (6, 6) and "scan" in around
    expected = sum(jax.grad(loss)(W, X[i : i + 1]) for i in range(len(X)))
    np.testing.assert_allclose(fn(W, X), expected, rtol=1e-4)


# Side effects.


def noted(x):
    return io_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # the user's line


def in_a_loop(w, x):
    return plain(w, lax.fori_loop(0, 2, lambda _, x: noted(x), x))


def in_a_backward_rule(w, x):
    function = jax.custom_vjp(lambda y: y)
    function.defvjp(lambda y: (y, None), lambda _, g: (noted(g),))
    return plain(function(w), x)


LOSSES = {
    "plain": lambda w, x: plain(w, noted(x)),
    "loop": in_a_loop,
    "backward rule": in_a_backward_rule,
    "sequential_vmap": lambda w, x: plain(w, jax.custom_batching.sequential_vmap(noted)(x)),
}


@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("name", LOSSES)
def test_io_callback_is_refused_with_the_line_and_the_way_out(name, engine):
    lines, start = inspect.getsourcelines(noted)
    number = next(start + i for i, line in enumerate(lines) if "the user's line" in line)
    with pytest.raises(FixLossError, match=r"io_callback, at .*aux.*jax.pure_callback") as error:
        run(LOSSES[name], engine=engine)
    # JAX reports the call of the function as the line of its backward rule.
    assert name == "backward rule" or f"test_isolation.py:{number}" in str(error.value)


def test_io_callback_is_refused_in_a_transform_a_function_and_explain():
    with pytest.raises(FixLossError, match="io_callback"):
        run(plain, pre_clipping_transform=noted)
    with pytest.raises(FixLossError, match="io_callback"):
        bevel.clipped_fun(noted, l2_clip_norm=1.0)(X)
    with pytest.raises(FixLossError, match="io_callback"):
        bevel.explain(bevel.clipped_grad(LOSSES["plain"], l2_clip_norm=1.0), W, X)


def test_foreign_code_with_side_effects_is_refused():
    def loss(w, x):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = buffer_callback(lambda *_: None, out, has_side_effect=True, vmap_method="sequential")
        return plain(w, call(x))

    with pytest.raises(
        FixLossError, match=r"buffer_callback with has_side_effect=True, at .*leave"
    ):
        run(loss)


def test_a_write_to_a_ref_from_outside_is_refused():
    shared = jax.new_ref(jnp.zeros((1, 6)))

    def written(w, x):
        shared[...] = x
        return plain(w, x)

    def in_a_loop(w, x):
        return plain(w, lax.map(lambda x: (shared[...], shared.__setitem__(..., x))[0], x[None])[0])

    def counted(w, x):
        shared[...] += 1.0
        return plain(w, x + shared[...])

    for loss in (written, in_a_loop, counted):
        with pytest.raises(FixLossError, match=r"writes to a jax.Ref from outside, at .*inside"):
            run(loss)
    assert not np.any(shared[...])


def test_a_print_shows_one_example_at_a_time_and_changes_nothing(capfd):
    def loss(w, x):
        jax.debug.print("<{}>", x[0, 0])
        jax.debug.callback(lambda x: seen.append(x.shape), x)
        return plain(w, x)

    seen = []
    got = run(loss)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("<") == len(X) and seen == [(1, 6)] * len(X)
    np.testing.assert_array_equal(got, run(plain))


# Operations that JAX does not batch.


def doubled_by_partitioning():
    function = custom_partitioning(lambda x: 2 * x)
    function.def_partition(
        partition=lambda mesh, args, out: (mesh, lambda x: 2 * x, out.sharding, (out.sharding,)),
        infer_sharding_from_operands=lambda mesh, args, out: args[0].sharding,
        sharding_rule="i j -> i j",
    )
    return function


WITHOUT_A_RULE = {
    "composite": lax.composite(lambda x: 2 * x, "tests.double"),
    "custom_partitioning": doubled_by_partitioning(),
    "linear_call": lambda x: jax.custom_derivatives.linear_call(
        lambda _, y: 2 * y, lambda _, g: 2 * g, (), x
    ),
}


@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("name", WITHOUT_A_RULE)
def test_an_operation_without_a_batching_rule_runs_one_example_at_a_time(name, engine):
    fn = bevel.clipped_grad(
        lambda w, x: plain(w, WITHOUT_A_RULE[name](x)), l2_clip_norm=1.0, engine=engine
    )
    program = jax.make_jaxpr(fn)(W, X)
    calls = [
        (eqn, around)
        for eqn, around in equations(program.jaxpr)
        if eqn.primitive.name == name and name not in around
    ]
    assert calls
    for eqn, around in calls:
        assert eqn.invars[-1].aval.shape == (1, 6) and "scan" in around
    same = run(lambda w, x: plain(w, 2 * x), engine=engine)
    np.testing.assert_allclose(fn(W, X), same, rtol=1e-5)


def coupled_to_its_start(x):
    return lax.reduce_window(x, x[0, 0], lambda a, b: a * b + 1, (1, 1), (1, 1), "VALID")


def test_what_a_rule_of_jax_refuses_is_refused_with_the_way_out():
    with pytest.raises(FixLossError, match=r"reduce_window.*(?s:.*)sequential_vmap"):
        run(lambda w, x: plain(w, coupled_to_its_start(x)))


def test_the_way_out_works():
    looped = jax.custom_batching.sequential_vmap(coupled_to_its_start)
    got = run(lambda w, x: plain(w, looped(x)))
    np.testing.assert_allclose(got, run(lambda w, x: plain(w, x[:, :1] * x + 1)), rtol=1e-6)
