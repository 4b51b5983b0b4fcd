"""Microbatches give the same sum and the same rows in the same order, without padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bevel import clipped_grad
from bevel.clipping.accumulate import example_gradients
from bevel.clipping.accumulate.microbatches import in_microbatches
from bevel.errors import PadBatchError

SIZE = 8
X = np.random.default_rng(0).normal(size=(SIZE, 3)).astype(np.float32)
W = np.array([0.5, -1.0, 2.0], np.float32)


def loss(w, x):
    prediction = jnp.tanh(x @ w)
    return jnp.mean(prediction**2), {"prediction": prediction[0], "row": x}


def run(size, padding=None, fun=loss):
    fn = clipped_grad(
        fun,
        has_aux=True,
        l2_clip_norm=0.3,
        microbatch_size=size,
        return_values=True,
        return_grad_norms=True,
    )
    return fn(W, X, is_padding_example=padding)


def assert_equal(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), got, expected)


@pytest.mark.parametrize("padding", [None, np.arange(SIZE) % 3 == 1], ids=["full", "padded"])
def test_every_size_gives_the_sum_and_the_rows_of_the_whole_batch(padding):
    whole = run(None, padding)
    for size in (1, 2, 4, SIZE, 3 * SIZE):
        assert_equal(run(size, padding), whole)


def test_per_example_outputs_keep_their_order():
    _, aux = run(2)
    np.testing.assert_array_equal(aux.aux["row"][:, 0], X)
    np.testing.assert_allclose(aux.aux["prediction"], np.tanh(X @ W), rtol=1e-5)


def chunk(batch, keys, padding, earlier):
    """Sums and rows of a microbatch, without any clipping."""
    del keys, padding
    total = jnp.sum(batch, axis=0)
    return [total if earlier is None else earlier[0] + total], [batch]


def pieces_of(jaxpr):
    (loop,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    return loop, [eqn.primitive.name for eqn in loop.params["jaxpr"].eqns]


def test_a_piece_takes_rows_that_lie_far_apart():
    seen = []

    def watching(batch, *rest):
        jax.debug.callback(lambda rows: seen.append(rows.tolist()), batch)
        return chunk(batch, *rest)

    sums, rows = in_microbatches(watching, SIZE, 2, jnp.arange(SIZE), None, None)
    jax.effects_barrier()
    assert sorted(seen) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sums[0] == 28 and rows[0].tolist() == list(range(SIZE))


def test_one_piece_is_no_loop():
    jaxpr = jax.make_jaxpr(lambda x: in_microbatches(chunk, SIZE, SIZE, x, None, None))(X)
    assert "scan" not in {eqn.primitive.name for eqn in jaxpr.eqns}


def test_pieces_branch_only_where_there_may_be_padding():
    for padding, branches in ((None, False), (np.zeros(SIZE, bool), True)):
        jaxpr = jax.make_jaxpr(lambda x, p: in_microbatches(chunk, SIZE, 2, x, None, p))(X, padding)
        loop, names = pieces_of(jaxpr)
        assert loop.params["length"] == 4
        assert ("cond" in names) == branches


def test_pieces_that_are_all_padding_are_skipped():
    seen = []

    def watching(w, x):
        jax.debug.callback(lambda row: seen.append(row.tolist()), x[0])
        return loss(w, x)

    padding = np.isin(np.arange(SIZE), (1, 3, 5))  # of microbatches {k, k + 4}, {1, 5} is padding
    got = run(2, padding, watching)
    jax.effects_barrier()
    assert sorted(seen) == sorted(X[[0, 2, 3, 4, 6, 7]].tolist())
    assert_equal(got, run(None, padding))


def test_a_batch_of_padding_gives_zeros():
    grad, aux = run(2, np.ones(SIZE, bool))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((grad, aux)))
    assert aux.aux["row"].shape == (SIZE, 1, 3)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_a_batch_that_does_not_split_is_refused_with_the_size_to_pad_to(size):
    rows = -(-SIZE // size) * size
    message = f"8 examples does not split into microbatches of {size}. Pad it to {rows} rows and"
    with pytest.raises(PadBatchError, match=message):
        run(size)


def test_sums_are_accumulated_in_float32():
    """Each microbatch adds 1 to 256, which bfloat16 cannot represent."""
    w = jnp.zeros(1, jnp.bfloat16)
    x = jnp.asarray(np.r_[256.0, np.ones(7)][:, None], jnp.bfloat16)
    fn = clipped_grad(lambda w, x: jnp.sum(x * w[None]), l2_clip_norm=1e9, microbatch_size=1)
    np.testing.assert_array_equal(fn(w, x), [263.0])


@pytest.mark.parametrize("padding", [None, np.arange(SIZE) % 3 == 1], ids=["full", "padded"])
def test_the_sums_of_microbatches_are_accumulated_in_place(padding):
    """No second copy of all sums exists, whether or not a microbatch may be skipped."""
    params = {name: np.ones((256, 256), np.float32) for name in "abcdefgh"}
    x = np.ones((SIZE, 4, 256), np.float32)

    def deep(params, x):
        for w in params.values():
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    fn = clipped_grad(deep, l2_clip_norm=0.3, microbatch_size=2)
    call = jax.jit(lambda params, x: fn(params, x, is_padding_example=padding))
    memory = call.lower(params, x).compile().memory_analysis()
    size = 4 * sum(w.size for w in params.values())
    most = 1.3 if jax.__version_info__ < (0, 11) else 0.6  # an earlier compiler copies them once
    assert memory.temp_size_in_bytes < most * size


@pytest.mark.parametrize(
    "manual, check_vma",
    [({"data"}, True), ({"data"}, False), ({"data", "model"}, True)],
)
@pytest.mark.parametrize("options", [{"microbatch_size": 1}, {}, {"memory": "low"}])
def test_shards_take_the_same_branch_where_the_compiler_splits_the_rest(
    options, manual, check_vma, monkeypatch
):
    """It may communicate over all devices, and would wait forever for a shard that skipped."""
    monkeypatch.setitem(example_gradients.ONE_PASS, "cpu", 1)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    @jax.checkpoint
    def loss(w, x):
        return jnp.sum(jnp.sin(x @ w))

    fn = clipped_grad(loss, l2_clip_norm=1.0, reduce_axes="data", **options)

    def shard(w, x, padding):
        return fn(w, x, is_padding_example=padding)

    specs = P(), P("data"), P("data")
    run = jax.shard_map(
        shard, mesh=mesh, in_specs=specs, out_specs=P(), axis_names=manual, check_vma=check_vma
    )
    w, x = jnp.ones((3, 2)), jnp.linspace(0, 1, 24).reshape(8, 3)
    x = x.at[1].multiply(1e25)
    padding = np.arange(8) != 1
    assert ("pmin" in str(jax.make_jaxpr(run)(w, x, padding))) == ("model" not in manual)
    gradient = jax.grad(loss)(w, x[1:2])
    expected = gradient / 1e25
    expected /= jnp.linalg.norm(expected)
    np.testing.assert_allclose(jax.jit(run)(w, x, padding), expected, rtol=1e-4)
