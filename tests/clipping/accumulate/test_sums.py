"""Groups of leaves with clip norms of their own, and examples that must not enter the sum."""

import jax
import jax.numpy as jnp
import losses
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bevel import clipped_fun, clipped_grad
from bevel.sharding.types import varying_axes

PREFIXES = {
    "per layer": [0.1, 0.2],
    "per leaf": [{"w": 0.1, "b": 0.02}, {"w": 0.2, "b": 0.3}],
    "mixed": [0.1, {"w": 0.2, "b": 10.0}],
}
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
W = np.array([0.5, -1.0, 2.0], np.float32)


def quadratic(w, x):
    value = x @ w
    return jnp.mean(value**2), value


def run(x, padding=None, fun=quadratic, w=W, **options):
    options = {"l2_clip_norm": 0.5, "return_values": True, "return_grad_norms": True} | options
    return clipped_grad(fun, has_aux=True, **options)(w, x, is_padding_example=padding)


def poisoned(value, rows):
    x = X.copy()
    x[rows] = value
    return x


def assert_close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("name", PREFIXES)
def test_each_group_is_clipped_by_itself(name, rescale):
    case = losses.make("mlp")
    truth = oracle.clipped_sum(
        case.loss, case.params, case.batch, clip_norm=PREFIXES[name], rescale=rescale
    )
    fn = clipped_grad(case.loss, l2_clip_norm=PREFIXES[name], rescale_to_unit_norm=rescale)
    assert_close(fn(case.params, case.batch), truth.grad)


def test_the_groups_of_an_output_are_clipped_by_themselves():
    def halves(x):
        return {"left": x[0, :1], "right": [x[0, 1:]]}

    got = clipped_fun(halves, l2_clip_norm={"left": 0.1, "right": 0.2})(X)

    def clipped(rows, limit):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.sum(rows * np.minimum(1, limit / norms), axis=0)

    assert_close(got, {"left": clipped(X[:, :1], 0.1), "right": [clipped(X[:, 1:], 0.2)]})


@pytest.mark.parametrize("rescale, normalize_by", [(False, 1.0), (True, 1.0), (False, 6.0)])
def test_the_output_of_a_function_is_clipped_and_summed(rescale, normalize_by):
    def features(x, scale):
        return {"a": scale * x[0], "b": jnp.sum(x)}

    fn = clipped_fun(
        features,
        l2_clip_norm=0.5,
        rescale_to_unit_norm=rescale,
        normalize_by=normalize_by,
        return_norms=True,
    )
    got, aux = fn(X, 2.0)
    total, norms = np.zeros(4), []
    for row in X.astype(np.float64):
        contribution = np.r_[2 * row, row.sum()]
        norms.append(np.linalg.norm(contribution))
        total += contribution * min(1, 0.5 / norms[-1]) / (0.5 if rescale else 1) / normalize_by
    assert_close(got, {"a": total[:3], "b": total[3]})
    assert_close(aux.grad_norms, np.array(norms, np.float32))


@pytest.mark.parametrize("nan_safe", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
def test_padding_contributes_zero_whatever_it_holds(value, nan_safe):
    rows = [1, 4]
    padding = np.isin(np.arange(6), rows)
    grad, aux = run(poisoned(value, rows), padding, nan_safe=nan_safe)
    expected, _ = run(np.delete(X, rows, axis=0))
    assert_close(grad, expected)
    for leaf in (aux.values, aux.grad_norms, aux.aux):
        assert np.all(np.asarray(leaf)[rows] == 0)
        assert np.all(np.asarray(leaf)[~padding] != 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_examples_whose_gradient_is_not_finite_contribute_zero(value):
    grad, aux = run(poisoned(value, [2]))
    expected, _ = run(np.delete(X, 2, axis=0))
    assert_close(grad, expected)
    assert not np.isfinite(aux.grad_norms[2]) and np.isfinite(np.delete(aux.grad_norms, 2)).all()


def test_one_group_that_is_not_finite_silences_the_whole_example():
    def pair(params, x):
        return jnp.mean(x[:, 0] * params["a"] + x[:, 1] * params["b"])

    fn = clipped_grad(pair, l2_clip_norm={"a": 1e9, "b": 1e9})
    x = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    assert_close(fn({"a": 1.0, "b": 1.0}, x), {"a": 2.0, "b": 3.0})


def test_without_nan_safe_a_nan_comes_through():
    grad, _ = run(poisoned(np.nan, [2]), nan_safe=False)
    assert np.isnan(grad).all()


@pytest.mark.parametrize("tapped", [True, False])
def test_an_activation_that_overflows_silences_its_example_only(tapped):
    """With a tap the infinite activation is an operand of the sum itself."""

    def overflowing(w, x):
        value = jnp.exp(x) @ w
        value = value if tapped else value + 0.0 * jnp.sum(w)
        return jnp.mean(value), value

    x = X.copy()
    x[3, 0] = 1000.0
    grad, _ = run(x, fun=overflowing)
    expected, _ = run(np.delete(X, 3, axis=0), fun=overflowing)
    assert_close(grad, expected)


def test_keys_among_the_outputs_pass_through():
    def keyed(w, x):
        return jnp.mean(x @ w), jax.random.key(3)

    padding = np.arange(6) == 5
    _, aux = run(X, padding, fun=keyed)
    assert aux.aux.shape == (6,) and jnp.issubdtype(aux.aux.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_dtype_asked_for_is_that_of_the_result_only(dtype):
    grad, aux = run(X.astype(jnp.bfloat16), w=W.astype(jnp.bfloat16), dtype=dtype)
    assert grad.dtype == dtype and aux.grad_norms.dtype == jnp.float32
    np.testing.assert_allclose(grad.astype(np.float32), run(X)[0], atol=2e-2)


def equations_of(program):
    (mapped,) = (e for e in program.jaxpr.eqns if e.primitive.name == "shard_map")
    return mapped.params["jaxpr"].eqns


@pytest.mark.parametrize("large", [1.0, 1e25])
def test_shards_of_one_gradient_repair_it_together(large):
    """Squares overflow on one shard only, and both shards scale their parts."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(1)
    w, x = (0.1 * rng.normal(size=s).astype(np.float32) for s in ((512, 2048), (16, 512)))
    scale = np.where(np.arange(2048) < 1024, 1, large).astype(np.float32)

    def loss(p, scale, x):
        return jax.lax.psum(jnp.sum(jnp.tanh(x @ p) @ scale), "model")

    step = jax.shard_map(
        clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=2, reduce_axes="data"),
        mesh=mesh,
        in_specs=(P(None, "model"), P("model"), P("data")),
        out_specs=P(None, "model"),
    )
    with jax.set_mesh(mesh):
        got = jax.jit(step)(w, scale, x)
        program = jax.make_jaxpr(step)(w, scale, x)
    # Else one shard would wait for another in a collective that the other does not reach.
    (repair,) = (eqn for eqn in equations_of(program) if eqn.primitive.name == "custom_jvp_call")
    (loop,) = (eqn for eqn in repair.params["call_jaxpr"].eqns if eqn.primitive.name == "while")
    goes_on = loop.outvars[0].aval
    assert goes_on.dtype == bool and varying_axes(goes_on) == {"data"}
    exact = np.stack([(1 - np.tanh(r @ w) ** 2) * np.outer(r, scale) for r in x.astype(np.float64)])
    norms = np.sqrt(np.sum(exact**2, axis=(1, 2)))
    expected = np.sum(exact / np.maximum(norms, 1)[:, None, None], axis=0)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-5)
