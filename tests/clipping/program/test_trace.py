"""A loss that cannot be traced for one example is refused with its line and with advice."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel import clipped_fun, clipped_grad
from bevel.errors import FixLossError

X = np.arange(8, dtype=np.float32).reshape(4, 2) / 4
PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}


def linear(params, x):
    return x @ params["w"] + params["b"]


def plain(params, x):
    return jnp.mean(linear(params, x) ** 2)


def run(loss, *args, x=X, **options):
    return clipped_grad(loss, l2_clip_norm=1e9, **options)(PARAMS, x, *args)


def line_of(function, text):
    """`file:line` of the first line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    number = next(start + i for i, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{number}"


def test_a_loss_that_is_no_scalar_for_one_example_is_refused():
    with pytest.raises(
        FixLossError, match=r"has shape \(1,\), but a gradient needs a scalar.*mean"
    ):
        run(linear)


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_a_loss_that_is_no_real_number_is_refused(dtype):
    with pytest.raises(FixLossError, match=f"the loss has dtype {dtype}. Return a real floating"):
        run(lambda p, x: plain(p, x).astype(dtype))


@pytest.mark.parametrize("value", [None, {}], ids=["none", "empty"])
def test_a_loss_that_returns_nothing_is_refused(value):
    with pytest.raises(FixLossError, match="scalar"):
        run(lambda p, x: value)


def test_a_call_with_other_arguments_than_the_loss_takes_is_explained():
    key = jax.random.key(0)
    said = r"takes \(params, x\), but it was called with 3 arguments.*prng_argnum"
    with pytest.raises(FixLossError, match=said) as error:
        run(plain, key, prng_argnum=2)
    assert "keep_batch_dim" not in str(error.value)
    with pytest.raises(FixLossError, match="missing a required argument: 'y'"):
        run(lambda params, x, y: plain(params, x))


def test_a_pair_without_has_aux_is_refused():
    with pytest.raises(FixLossError, match="scalar"):
        run(lambda p, x: (plain(p, x), x))


def needs_four(params, x):
    return plain(params, x) + jnp.sum(x.reshape(4, 2))  # not one example


def test_a_loss_that_wants_the_whole_batch_is_refused_with_the_users_line():
    with pytest.raises(FixLossError, match="cannot be traced for one example of batch size 1") as e:
        run(needs_four)
    assert line_of(needs_four, "not one example") in str(e.value)
    assert "reshape(4, 2)" in str(e.value) and e.value.__cause__ is not None


def test_an_error_of_the_loss_itself_is_shown():
    def broken(params, x):
        raise KeyError("no such layer")

    with pytest.raises(FixLossError, match="KeyError: 'no such layer'"):
        run(broken)


def test_python_control_flow_on_a_traced_value_is_refused_with_the_users_line():
    def branching(params, x):
        return plain(params, x) if x[0, 0] > 0 else 0.0

    with pytest.raises(FixLossError, match="cannot be traced for one example") as e:
        run(branching)
    assert line_of(branching, "x[0, 0]") in str(e.value)


@pytest.mark.parametrize("make", [clipped_grad, clipped_fun])
@pytest.mark.parametrize("result", [lambda v: v, lambda v: (v,), lambda v: [v, v]])
def test_has_aux_wants_a_pair(make, result):
    options = {} if make is clipped_grad else {"batch_argnums": 1}
    fn = make(lambda p, x: result(plain(p, x)), has_aux=True, l2_clip_norm=1.0, **options)
    with pytest.raises(
        FixLossError, match=r"has_aux=True, but the function returned.*\(value, aux"
    ):
        fn(PARAMS, X)


def test_ordered_effects_are_refused():
    def printing(params, x):
        jax.debug.print("{}", x[0, 0], ordered=True)
        return plain(params, x)

    with pytest.raises(FixLossError, match=r"ordered side effect.*Pass ordered=False"):
        run(printing)


def test_unordered_effects_run_for_every_example():
    seen = []

    def watching(params, x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return plain(params, x)

    jax.block_until_ready(run(watching))
    jax.effects_barrier()
    assert sorted(seen) == sorted(X[:, 0].tolist())


def halve_until_small(v):
    return jax.lax.while_loop(lambda v: v > 1.0, lambda v: v / 2, v)


def test_a_gradient_through_a_while_loop_is_refused_with_parameter_and_primitive():
    def looping(params, x):
        return halve_until_small(jnp.sum(params["w"] ** 2)) + jnp.mean(x) * params["b"]

    with pytest.raises(FixLossError, match=r"argument 0.'w'. reaches the loss through while") as e:
        run(looping)
    assert "['b']" not in str(e.value).splitlines()[0]
    assert "custom_vjp" in str(e.value) and "stop_gradient" in str(e.value)


def test_a_while_loop_without_a_gradient_works():
    def looping(params, x):
        scale = halve_until_small(jax.lax.stop_gradient(jnp.sum(params["w"] ** 2)))
        return scale * halve_until_small(jnp.sum(x)) * plain(params, x)

    expected = sum(0.625 * halve(s) * g for s, g in zip(X.sum(1), per_example("w"), strict=True))
    np.testing.assert_allclose(run(looping)["w"], expected, rtol=1e-5)


def halve(v):
    while v > 1.0:
        v = v / 2
    return v


def per_example(name):
    gradient = jax.jit(jax.grad(plain))
    return [np.asarray(gradient(PARAMS, X[i : i + 1])[name]) for i in range(len(X))]


def test_a_gradient_through_a_callback_is_refused_with_parameter_and_primitive():
    def outside(params, x):
        b = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), params["b"])
        return plain(params, x) * b

    with pytest.raises(
        FixLossError, match=r"argument 0.'b'. reaches the loss through pure_callback"
    ):
        run(outside)


def test_a_constraint_written_for_the_batch_dimension_is_refused_without_it():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def constrained(params, y):
        y = jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P("data")))
        return jnp.mean(y) * params["b"]

    message = "one example without its batch dimension.*keep_batch_dim"
    with pytest.raises(FixLossError, match=f"(?s){message}") as e:
        run(constrained, x=X[:, 0], keep_batch_dim=False)
    assert line_of(constrained, "with_sharding_constraint") in str(e.value)
    np.testing.assert_allclose(run(constrained, x=X[:, 0])["b"], X[:, 0].sum(), rtol=1e-5)
