"""Every loss of the table, every dtype and option, against the float64 oracle."""

import jax
import jax.numpy as jnp
import losses
import numpy as np
import oracle
import pytest
from compare import assert_close, cover
from hypothesis import given, settings
from hypothesis import strategies as st

import bevel

TOLERANCE = {"float32": 2e-5, "bfloat16": 6e-2, "float16": 1e-2}

# Options of clipped_grad, with what the oracle calls them.
OPTIONS = {
    "plain": ({}, {}),
    "rescaled": ({"rescale_to_unit_norm": True}, {"rescale": True}),
    "normalized": ({"normalize_by": 8.0}, {"normalize_by": 8.0}),
    "automatic": ({"automatic_gamma": 0.1}, {"gamma": 0.1}),
    "microbatched": ({"microbatch_size": 2}, {}),
    "transformed": (
        {"pre_clipping_transform": lambda g: jax.tree.map(lambda x: 2 * x, g)},
        {"transform": lambda g: jax.tree.map(lambda x: 2 * x, g)},
    ),
    "reference engine": ({"engine": "vmap"}, {}),
}


@pytest.mark.parametrize("name, dtype, option", cover(losses.NAMES, TOLERANCE, OPTIONS))
def test_equals_the_oracle(name, dtype, option):
    case = losses.make(name, jnp.dtype(dtype))
    options, truth_options = OPTIONS[option]
    limit = oracle.middle_norm(case.loss, case.params, case.batch)
    truth = oracle.clipped_sum(case.loss, case.params, case.batch, clip_norm=limit, **truth_options)
    fn = bevel.clipped_grad(
        case.loss, l2_clip_norm=limit, return_values=True, return_grad_norms=True, **options
    )
    grad, aux = fn(case.params, case.batch)
    tolerance = TOLERANCE["bfloat16" if name == "mixed_dtypes" else dtype]
    assert_close(grad, truth.grad, tolerance)
    np.testing.assert_allclose(aux.values, truth.values, rtol=tolerance, atol=1e-6)
    np.testing.assert_allclose(aux.grad_norms, truth.norms, rtol=tolerance, atol=1e-6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grad))


def layered(params, x):
    h = jnp.tanh(x @ params["w"] + jnp.broadcast_to(params["b"], (*x.shape[:-1], 3)))
    return jnp.mean((h @ params["v"]) ** 2)


@settings(max_examples=15)
@given(
    rows=st.lists(st.integers(1, 4), max_size=2),
    width=st.integers(1, 9),
    pieces=st.integers(1, 3),
    microbatch=st.sampled_from([None, 1, 2]),
    rescaled=st.booleans(),
    padded=st.booleans(),
    limit=st.sampled_from([0.0, 1e-3, 0.3, 1e3]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_options(rows, width, pieces, microbatch, rescaled, padded, limit, seed):
    rng = np.random.default_rng(seed)
    size = pieces * (microbatch or 1)
    shapes = {"w": (width, 3), "b": (3,), "v": (3, 2)}
    params = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}
    batch = jnp.asarray(rng.normal(size=(size, *rows, width)), jnp.float32)
    padding = rng.random(size) < 0.5 if padded else None
    fn = bevel.clipped_grad(
        layered, l2_clip_norm=limit, rescale_to_unit_norm=rescaled, microbatch_size=microbatch
    )
    truth = oracle.clipped_sum(
        layered, params, batch, clip_norm=limit, rescale=rescaled, padding=padding
    )
    got = fn(params, batch, is_padding_example=padding)
    # Slack shrinks contributions whose rows cancel: at most by this much at these sizes.
    assert_close(got, truth.grad, 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "int32", "float64"])
def test_a_result_dtype_that_cannot_hold_the_sum_is_refused(dtype):
    with pytest.raises(bevel.errors.FixArgumentsError, match=r"float32|jax_enable_x64"):
        bevel.clipped_grad(losses.make("linear").loss, l2_clip_norm=1.0, dtype=dtype)


def test_an_unknown_engine_is_refused():
    with pytest.raises(bevel.errors.FixArgumentsError, match="'vmap'"):
        bevel.clipped_grad(losses.make("linear").loss, l2_clip_norm=1.0, engine="ghost")


def test_spmd_axis_name_is_accepted():
    case = losses.make("linear")
    fn = bevel.clipped_grad(case.loss, l2_clip_norm=1.0, spmd_axis_name="data")
    expected = oracle.clipped_sum(case.loss, case.params, case.batch, clip_norm=1.0)
    assert_close(fn(case.params, case.batch), expected.grad, 2e-5)


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("keep_batch_dim", [False, True])
def test_outputs_beside_the_gradient_are_those_that_were_asked_for(
    has_aux, values, norms, keep_batch_dim
):
    """The gradient alone if nothing is asked, else `(grad, Aux)`, with a leading batch axis."""

    def loss(w, x):
        value = jnp.sum(jnp.reshape(x, -1) * w)
        return (value, {"x": x, "square": value**2}) if has_aux else value

    asked = {"return_values": values, "return_grad_norms": norms}
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    options = {"l2_clip_norm": 1e6, "keep_batch_dim": keep_batch_dim, **asked}
    f = bevel.clipped_grad(loss, has_aux=has_aux, **options)
    result = f(jnp.ones(3), x)
    assert f.has_aux == (has_aux or values or norms)
    if not f.has_aux:
        np.testing.assert_allclose(result, x.sum(0), rtol=1e-5)
        return
    grad, aux = result
    np.testing.assert_allclose(grad, x.sum(0), rtol=1e-5)
    assert aux._fields == ("values", "grad_norms", "aux") and type(aux).__name__ == "Aux"
    assert (aux.values is not None, aux.grad_norms is not None) == (values, norms)
    if values:
        np.testing.assert_allclose(aux.values, x.sum(1), rtol=1e-5)
    if norms:
        np.testing.assert_allclose(aux.grad_norms, np.linalg.norm(x, axis=1), rtol=1e-5)
    assert (aux.aux is not None) == has_aux
    if has_aux:
        rows = x[:, None] if keep_batch_dim else x
        np.testing.assert_array_equal(aux.aux["x"], rows)
        np.testing.assert_allclose(aux.aux["square"], x.sum(1) ** 2, rtol=1e-5)
