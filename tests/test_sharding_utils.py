"""The sharding functions of JAX Privacy's names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel import sharding_utils
from bevel.batch_selection import pad_to_multiple_of
from bevel.errors import FixArgumentsError
from bevel.experimental.discrete_gaussian import sample_discrete_gaussian

KINDS = [AxisType.Auto, AxisType.Explicit]


def sharding(kind, *spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    return NamedSharding(mesh, P(*spec))


@pytest.mark.parametrize("shape, size", [((3, 5), 16), ((8, 2), 16), ((), 8), ((0, 3), 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_flat_types_are_padded_and_split_over_all_axes(kind, shape, size):
    like = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding(kind))
    flat = sharding_utils.flatten_with_zero_redundancy(like)
    assert (flat.shape, flat.dtype) == ((size,), jnp.bfloat16)
    assert flat.sharding.spec == P(("data", "model"))


def test_without_a_mesh_types_are_flat_only():
    for like in (jnp.zeros((3, 5)), jax.ShapeDtypeStruct((3, 5), "float32")):
        flat = sharding_utils.flatten_with_zero_redundancy(like)
        assert flat.shape == (15,) and flat.sharding is None


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flat_array_is_added_in_place(kind, compiled):
    x = jax.device_put(np.zeros((8, 6), np.float32), sharding(kind, "data", "model"))
    y = jax.device_put(np.arange(56, dtype=np.float32), sharding(kind, ("data", "model")))
    add = sharding_utils.local_reshape_add
    with jax.set_mesh(x.sharding.mesh):
        total = (jax.jit(add) if compiled else add)(x, y)
    np.testing.assert_array_equal(total, np.arange(48).reshape(8, 6))
    assert total.sharding.is_equivalent_to(x.sharding, 2)


def test_without_a_mesh_a_flat_array_is_added():
    total = sharding_utils.local_reshape_add(jnp.ones((2, 2), jnp.bfloat16), jnp.arange(5.0))
    np.testing.assert_array_equal(total, [[1, 2], [3, 4]])
    assert total.dtype == np.float32
    for y in (jnp.ones(3), jnp.ones((2, 2))):
        with pytest.raises(FixArgumentsError, match="flat array of at least 4"):
            sharding_utils.local_reshape_add(jnp.ones((2, 2)), y)


@pytest.mark.parametrize("size, microbatch", [(12, 3), (12, 12), (12, 1), (12, None), (0, 2)])
def test_the_order_puts_padding_into_the_last_microbatches(size, microbatch):
    order = sharding_utils.compute_early_stopping_order(size, microbatch)
    assert sorted(order.tolist()) == list(range(size))
    for real in range(size + 1):
        batch = np.where(np.arange(size) < real, np.arange(size), -1)
        expected = batch
        if microbatch is not None and real:
            expected = pad_to_multiple_of(np.arange(real), size, microbatch)
        np.testing.assert_array_equal(batch[order], expected)


def test_the_order_needs_whole_microbatches():
    with pytest.raises(FixArgumentsError, match="not a multiple of microbatch_size=5"):
        sharding_utils.compute_early_stopping_order(12, 5)


def structs(kind=AxisType.Auto):
    return {
        "split": jax.ShapeDtypeStruct((64, 32), "float32", sharding=sharding(kind, "data")),
        "all": jax.ShapeDtypeStruct((8, 4), "bfloat16", sharding=sharding(kind)),
        "plain": jax.ShapeDtypeStruct((2000,), "float32"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_drawn_by_shard_and_replicas_are_equal(kind):
    made = [
        sharding_utils.parallel_sample_pytree(np.random.default_rng(3), structs(kind))
        for _ in range(2)
    ]
    jax.tree.map(np.testing.assert_array_equal, *made)
    tree = made[0]
    for name, like in structs(kind).items():
        assert (tree[name].shape, tree[name].dtype) == (like.shape, like.dtype)
        assert like.sharding is None or tree[name].sharding == like.sharding
    replicas = [np.asarray(s.data, np.float32) for s in tree["all"].addressable_shards]
    assert all(np.array_equal(replicas[0], other) for other in replicas)
    shards = {np.asarray(s.data).tobytes() for s in tree["split"].addressable_shards}
    assert len(shards) == 4
    values = np.concatenate([np.ravel(tree["split"]), tree["plain"]])
    assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.1


def test_other_samplers():
    sampler = functools.partial(sample_discrete_gaussian, sigma=3.0)
    like = jax.ShapeDtypeStruct((16, 4), "int32", sharding=sharding(AxisType.Auto, "data"))
    got = sharding_utils.parallel_sample_pytree(np.random.default_rng(0), like, sampler)
    assert got.dtype == np.int32 and np.unique(got).size > 4
    with pytest.raises(FixArgumentsError, match="rng is a int"):
        sharding_utils.parallel_sample_pytree(0, like)


def test_the_names_of_jax_privacy():
    assert bevel.sharding_utils is sharding_utils
    assert len(sharding_utils.__all__) == 4
