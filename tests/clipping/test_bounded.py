"""The promise of the sum: neighbours differ by the stated sensitivity and the stated rounding."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import losses
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from bevel import clipped_fun, clipped_grad
from bevel.clipping.bounded import BoundedSensitivityCallable
from bevel.errors import FixArgumentsError

Relation = dp_accounting.NeighboringRelation


def norm(*trees):
    """The norm of a tree, or of the difference of two, in float64."""
    parts = [[np.asarray(x).astype(np.float64) for x in jax.tree.leaves(t)] for t in trees]
    if len(parts) == 2:
        parts = [[a - b for a, b in zip(*parts, strict=True)]]
    return math.sqrt(sum(float(np.sum(x * x)) for x in parts[0]))


def bounded(bound=2.0, **options):
    return BoundedSensitivityCallable(lambda: None, bound, False, **options)


@pytest.mark.parametrize(
    "relation, factor",
    [
        (Relation.ADD_OR_REMOVE_ONE, 1),
        (Relation.REPLACE_SPECIAL, 1),
        (Relation.REPLACE_ONE, 2),
        ("ADD_OR_REMOVE_ONE", 1),
        ("REPLACE_ONE", 2),
        (None, 1),
    ],
)
def test_sensitivity(relation, factor):
    assert bounded().sensitivity(relation) == 2.0 * factor


@pytest.mark.parametrize("relation", ["replace", "", 2, object()])
def test_an_unknown_relation_is_an_error(relation):
    with pytest.raises(FixArgumentsError, match="REPLACE_ONE"):
        bounded().sensitivity(relation)


def test_every_relation_is_known():
    for relation in Relation:
        if relation.name in ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"):
            assert bounded().sensitivity(relation) > 0
        else:
            with pytest.raises(FixArgumentsError):
                bounded().sensitivity(relation)


@pytest.mark.parametrize(
    "options, bound",
    [
        ({"l2_clip_norm": 0.3}, 0.3),
        ({"l2_clip_norm": 0.3, "normalize_by": 4.0}, 0.075),
        ({"l2_clip_norm": 0.3, "rescale_to_unit_norm": True}, 1.0),
        ({"l2_clip_norm": 0.3, "automatic_gamma": 0.1}, 0.3),
        ({"l2_clip_norm": {"w": 3.0, "b": 4.0}}, 5.0),
        ({"l2_clip_norm": {"w": 3.0, "b": 4.0}, "rescale_to_unit_norm": True}, math.sqrt(2)),
        ({"l2_clip_norm": 1e-200}, 1e-200),
        ({"l2_clip_norm": 1e200}, 1e200),
        ({"l2_clip_norm": 0.0}, 0.0),
        ({"l2_clip_norm": math.inf}, math.inf),
    ],
)
def test_bound_of_one_example(options, bound):
    fn = clipped_grad(losses.make("linear").loss, **options)
    assert fn.l2_norm_bound == pytest.approx(bound, rel=1e-15, abs=0)
    assert fn.sensitivity() == fn.l2_norm_bound


def test_rounding_bound_grows_with_the_batch_and_shrinks_with_the_dtype():
    plain = bounded()
    assert 0 < plain.rounding_bound(8) < plain.rounding_bound(9) < 1e-4
    assert plain.rounding_bound(8) < plain.rounding_bound(8, rows_per_example=2)
    assert plain.rounding_bound(8) < bounded(result_dtype=jnp.bfloat16).rounding_bound(8)
    # A cast of a sum of norm 8 * 2 moves it by at most 2^-8 of that.
    assert bounded(result_dtype=jnp.bfloat16).rounding_bound(8) == pytest.approx(16 / 256, rel=1e-2)
    assert bounded(exact=True).rounding_bound(10**6, 512) == 0.0
    assert bounded(0.0).rounding_bound(8) == 0.0
    assert plain.rounding_bound(0) == 0.0


# One example's contribution.

CLIP = 0.05


@pytest.mark.parametrize(
    "name", ["linear", "mlp", "tied", "transformer", "rnn", "embedding", "custom_jvp", "nested_jit"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_example_is_within_the_clip_norm(name, dtype):
    # Norm and sum must see one and the same gradient, whatever precision the compiler keeps.
    fn = clipped_grad(losses.make(name).loss, l2_clip_norm=CLIP)
    for seed in range(4):
        case = losses.make(name, jnp.dtype(dtype), batch_size=1, seed=seed)
        got = norm(fn(case.params, case.batch))
        assert got <= CLIP + fn.rounding_bound(1)
        # In bfloat16 the product of coefficient and operand is rounded to eight bits.
        assert got >= (0.98 if dtype == "bfloat16" else 0.995) * CLIP


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_norm_is_that_of_the_rounded_value(dtype):
    # x * x is rounded to its dtype in the sum, so it has to be in the norm.
    fn = clipped_fun(lambda x: x[0] * x[0], l2_clip_norm=1.0)
    for value in np.linspace(1, 2, 64, endpoint=False):
        x = np.zeros((4, 64), jnp.dtype(dtype))
        x[0] = value
        assert norm(fn(x)) <= 1.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_norm_of_a_product_is_that_of_its_rounded_factors(dtype):
    def loss(w, batch):
        return jnp.sum((batch["h"] * batch["h"]) @ w * (batch["g"] * batch["g"]))

    fn = clipped_grad(loss, l2_clip_norm=1.0)
    for value in np.linspace(1, 2, 16, endpoint=False):
        x = np.full((1, 24), value).astype(jnp.dtype(dtype))
        total = fn(jnp.ones((24, 24), dtype), {"h": x, "g": x})
        assert norm(total) <= 1.0 + fn.rounding_bound(1)


# Neighbours.

OPTIONS = {
    "plain": {"l2_clip_norm": CLIP},
    "microbatches": {"l2_clip_norm": CLIP, "microbatch_size": 2},
    "normalized": {"l2_clip_norm": CLIP, "normalize_by": 3.0},
    "rescaled": {"l2_clip_norm": CLIP, "rescale_to_unit_norm": True},
    "automatic": {"l2_clip_norm": CLIP, "automatic_gamma": 0.01},
    "bfloat16 result": {"l2_clip_norm": CLIP, "dtype": jnp.bfloat16},
    "tiny": {"l2_clip_norm": 1e-30},
    "huge": {"l2_clip_norm": 1e30},
    "zero": {"l2_clip_norm": 0.0},
}
ROWS = {"tied": losses.T, "transformer": losses.T, "rnn": losses.T}


def with_row(batch, row, other):
    """`batch` with one example taken from `other`."""
    return jax.tree.map(lambda x, y: jnp.asarray(x).at[row].set(y[row]), batch, other)


def scaled(batch, factor):
    """A batch whose float data is multiplied; tokens stay."""
    return jax.tree.map(
        lambda x: x * jnp.asarray(factor, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        batch,
    )


def assert_neighbours(fn, case, rows_per_example=1):
    """Removes, replaces and poisons one example of a batch."""
    size, row = losses.B, 3
    nobody = np.zeros(size, bool)
    somebody = nobody.copy()
    somebody[row] = True
    rounding = 2 * fn.rounding_bound(size, rows_per_example)
    one = fn.sensitivity(Relation.ADD_OR_REMOVE_ONE) + rounding
    two = fn.sensitivity(Relation.REPLACE_ONE) + rounding

    whole = fn(case.params, case.batch, is_padding_example=nobody)
    without = fn(case.params, case.batch, is_padding_example=somebody)
    assert math.isfinite(norm(whole))
    assert norm(whole, without) <= one
    other = losses.make(case.name, case.params_dtype, seed=9).batch
    for factor in (1.0, -1e3, 1e15, np.nan, np.inf, -np.inf):
        batch = with_row(case.batch, row, scaled(other, factor))
        replaced = fn(case.params, batch, is_padding_example=nobody)
        assert norm(whole, replaced) <= two, factor
        assert norm(without, replaced) <= one, factor
        # What a padding example holds changes nothing at all.
        hidden = fn(case.params, batch, is_padding_example=somebody)
        assert norm(without, hidden) == 0.0, factor


class Case:
    def __init__(self, name, dtype):
        case = losses.make(name, jnp.dtype(dtype))
        self.name, self.loss, self.params, self.batch = name, case.loss, case.params, case.batch
        self.params_dtype = jnp.dtype(dtype)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_neighbours(name, option):
    case = Case(name, "float32")
    assert_neighbours(clipped_grad(case.loss, **OPTIONS[option]), case)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tied", "transformer", "rnn"])
def test_neighbours_of_sequences(name, dtype):
    case = Case(name, dtype)
    assert_neighbours(clipped_grad(case.loss, l2_clip_norm=CLIP), case, ROWS[name])


def test_neighbours_in_bfloat16():
    case = Case("mlp", "bfloat16")
    assert_neighbours(clipped_grad(case.loss, l2_clip_norm=CLIP, dtype=jnp.bfloat16), case)


def test_neighbours_with_a_clip_norm_per_layer():
    case = Case("mlp", "float32")
    fn = clipped_grad(case.loss, l2_clip_norm=[CLIP, {"w": 0.5, "b": 1e-5}])
    assert fn.l2_norm_bound == pytest.approx(math.hypot(CLIP, 0.5, 1e-5))
    assert_neighbours(fn, case)


def test_a_shorter_batch_is_a_neighbour():
    case = Case("mlp", "float32")
    fn = clipped_grad(case.loss, l2_clip_norm=CLIP)
    whole = fn(case.params, case.batch)
    shorter = fn(case.params, jax.tree.map(lambda x: x[:-1], case.batch))
    assert norm(whole, shorter) <= fn.sensitivity() + 2 * fn.rounding_bound(losses.B)


# The rounding of the sum.


def hostile_rows(rng, size, width):
    """Contributions that nearly cancel, so that the sum is small and its rounding is not."""
    x = rng.normal(size=(size, width)).astype(np.float32)
    x[1::2] = -x[::2] * np.float32(1 + 2.0**-20)
    return x


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float32"])
@pytest.mark.parametrize("microbatch_size", [None, 4])
@pytest.mark.parametrize("normalize_by", [1.0, 0.1, 7.0])
def test_the_sum_is_as_near_to_the_exact_one_as_stated(dtype, microbatch_size, normalize_by):
    fn = clipped_fun(
        lambda x: x[0],
        l2_clip_norm=1.0,
        dtype=dtype,
        microbatch_size=microbatch_size,
        normalize_by=normalize_by,
    )
    alone = clipped_fun(lambda x: x[0], l2_clip_norm=1.0)
    x = hostile_rows(np.random.default_rng(0), 64, 32)
    contributions = [np.asarray(alone(x[i : i + 1])).astype(np.float64) for i in range(64)]
    exact = np.sum(contributions, axis=0) / normalize_by
    assert norm(fn(x), exact) <= fn.rounding_bound(64)


def test_the_sum_of_products_of_many_rows():
    def loss(w, batch):
        return jnp.sum((batch["h"][0] @ w) * batch["g"][0])

    rng = np.random.default_rng(1)
    h = rng.normal(size=(16, 4, 24)).astype(np.float32)
    h[:, 1::2] = -h[:, ::2] * np.float32(1 + 2.0**-8)
    g = np.tile(rng.normal(size=(16, 1, 32)), (1, 4, 1)).astype(np.float32)
    fn = clipped_grad(loss, l2_clip_norm=1.0, return_grad_norms=True)
    w = jnp.ones((24, 32))
    total, _ = fn(w, {"h": h, "g": g})
    exact = 0.0
    for i in range(16):
        one, aux = fn(w, {"h": h[i : i + 1], "g": g[i : i + 1]})
        assert norm(one) <= 1.0 + fn.rounding_bound(1, 4)
        truth = h[i].astype(np.float64).T @ g[i].astype(np.float64)
        np.testing.assert_allclose(aux.grad_norms, [norm(truth)], rtol=1e-2)
        exact = exact + np.asarray(one, np.float64)
    assert norm(total, exact) <= fn.rounding_bound(16, 4) + 16 * fn.rounding_bound(1, 4)


def test_rows_far_apart_are_clipped():
    # The only row with a gradient is far below the longest rows of both factors.
    def loss(w, batch):
        return jnp.sum((batch["h"][0] @ w) * batch["g"][0])

    h, g = np.zeros((1, 3, 16), np.float32), np.zeros((1, 3, 16), np.float32)
    h[0, :, 0], g[0, :, 0] = [1e15, 1e5, 0], [0, 1e5, 1e15]
    # Its norm, 1e10, is lost beside rows of 1e15 and 1e15: the bound must not be.
    fn = clipped_grad(loss, l2_clip_norm=1.0)
    total = fn(jnp.ones((16, 16)), {"h": h, "g": g})
    assert norm(total) <= 1.0 + fn.rounding_bound(1, 3)


@pytest.mark.parametrize("width", [4, 256])
def test_subnormal_activations(width):
    # Read as zero by the norm, they must be read as zero by the matrix product too.
    def loss(w, batch):
        return jnp.sum((batch["h"] @ w) * batch["g"])

    fn = clipped_grad(loss, l2_clip_norm=1e-20)
    h, g = (np.full((8, width), v, np.float32) for v in (1e-39, 1e30))
    total = fn(jnp.ones((width, width)), {"h": h, "g": g})
    assert norm(total) <= 8e-20 + fn.rounding_bound(8)


# Results of other dtypes.


def or_refused(**options):
    """The callable, or None where bevel refuses the options: that keeps the promise too."""
    try:
        return clipped_fun(lambda x: x[0], **options)
    except FixArgumentsError:
        return None


def test_float16_results_that_are_subnormal():
    # Below 6e-5 float16 rounds by steps of 6e-8, however small the number.
    fn = or_refused(l2_clip_norm=1.0, normalize_by=1000.0, dtype=jnp.float16)
    if fn is not None:
        exact = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, normalize_by=1000.0)
        x = np.ones((1, 10000), np.float32)
        assert norm(fn(x), exact(x)) <= fn.rounding_bound(1) + exact.rounding_bound(1)


def test_float16_results_that_overflow():
    fn = or_refused(l2_clip_norm=6e4, dtype=jnp.float16)
    if fn is not None:
        x = np.full((2, 1), 1e9, np.float32)
        difference = norm(fn(x), fn(x[:1]))
        assert difference <= fn.sensitivity() + 2 * fn.rounding_bound(2)


def test_a_long_vector_is_not_dropped():
    # An odd number of parameters, as a raveled model may have. One contribution keeps its norm.
    x = np.ones((1, 2**24 + 1), np.float32)
    fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0)
    assert 0.995 <= norm(fn(x)) <= 1.0


# The grid.


def test_the_grid_is_exact():
    with jax.enable_x64(True):
        fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, grid_scale=1000)
        rng = np.random.default_rng(0)
        x = rng.normal(size=(16, 10)).astype(np.float32) * 2.0 ** rng.integers(-3, 9, size=(16, 1))
        x = x.astype(np.float32)
        ones = [np.asarray(fn(x[i : i + 1])) for i in range(16)]
        total = fn(x)
        assert total.dtype == jnp.int64
        np.testing.assert_array_equal(total, sum(ones))
        assert fn.rounding_bound(16) == 0.0
        for i in range(16):
            assert sum(int(v) ** 2 for v in ones[i]) <= int(fn.sensitivity()) ** 2
            rest = fn(np.delete(x, i, axis=0))
            np.testing.assert_array_equal(np.asarray(total) - np.asarray(rest), ones[i])
        x[5, 0] = np.nan
        np.testing.assert_array_equal(fn(x), np.asarray(total) - ones[5])


def test_the_grid_does_not_wrap_around():
    with jax.enable_x64(True):
        x = np.full((2, 1), 1e9)
        try:
            fn = clipped_fun(lambda x: x[0], l2_clip_norm=1e6, grid_scale=2**63)
            whole, one = int(fn(x)[0]), int(fn(x[:1])[0])
        except FixArgumentsError:
            return  # refusing is safe too
        assert abs(whole - one) <= fn.sensitivity()


def test_the_grid_counts_the_coordinates_of_all_shards():
    # Rounding to the grid can move every coordinate, not only those of one shard.
    with jax.enable_x64(True):
        fn = clipped_fun(lambda x: x[0], l2_clip_norm=1.0, grid_scale=20, batch_axes=())
        mesh = Mesh(np.array(jax.devices()[:8]), ("model",))
        specs = {"in_specs": PartitionSpec(None, "model"), "out_specs": PartitionSpec("model")}
        total = jax.jit(jax.shard_map(fn, mesh=mesh, **specs))(np.full((1, 800), 0.026))
        assert norm(total) <= fn.sensitivity()


def test_rows_of_the_program_are_known_once_it_was_called():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    fn = clipped_grad(loss, l2_clip_norm=1.0)
    with pytest.raises(FixArgumentsError, match="call the function once"):
        fn.rounding_bound(4)
    fn(jnp.ones((32, 32)), jnp.ones((4, 1, 32)))
    assert fn.rounding_bound(4) == fn.rounding_bound(4, rows_per_example=1)
    fn(jnp.ones((32, 32)), jnp.ones((4, 3, 32)))
    assert fn.rounding_bound(4) == fn.rounding_bound(4, rows_per_example=3)
