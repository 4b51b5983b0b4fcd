"""Flat noise over all devices: the same numbers, less memory, one all-gather."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import cost
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import (
    AUTO,
    EXPLICIT,
    STDDEV_OF_BITS,
    Decaying,
    bits_as_noise,
    threefry_key,
)

from bevel.errors import FixArgumentsError
from bevel.noise_addition import (
    SupportedStrategies,
    gaussian_noise,
    gaussian_privatizer,
    matrix_factorization_privatizer,
)
from bevel.noise_addition.noise_layout import flat_like, unflatten

G = {"w": np.ones((8, 12), np.float32)}
ZERO = {"intermediate_strategy": SupportedStrategies.ZERO}


@pytest.fixture(autouse=True)
def cheap_noise(monkeypatch):
    monkeypatch.setattr(gaussian_noise, "normal_from_bits", bits_as_noise)


def mesh_of(*kinds):
    return jax.make_mesh((4, 2)[: len(kinds)], ("data", "model")[: len(kinds)], axis_types=kinds)


def placed(mesh):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P())), G)


def steps(privatizer, grads, count=3):
    state, found = privatizer.init(grads), []
    for _ in range(count):
        noised, state = privatizer.update(grads, state)
        found.append(noised)
    return found, state


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_the_noise_is_that_of_the_default(kind):
    expected, _ = steps(
        matrix_factorization_privatizer(Decaying, stddev=STDDEV_OF_BITS, prng_key=threefry_key(5)),
        G,
    )
    flat = matrix_factorization_privatizer(
        Decaying, stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO
    )
    found, state = steps(flat, placed(mesh_of(kind, kind)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    for buffers in state.buffers:
        assert buffers["last"].shape == (1, 1024)
        assert buffers["last"].sharding.spec == P(None, ("data", "model"))


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_one_all_gather_for_a_leaf(kind):
    privatizer = gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO)
    grads = placed(mesh_of(kind, kind))
    found = cost(privatizer.update, grads, privatizer.init(grads))
    kinds = {kind: n for kind, n in found.items() if kind not in ("flops", "memory") and n}
    assert kinds == {"all-gather": 1}


def test_without_a_mesh_there_is_nothing_to_split():
    expected, _ = steps(gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5)), G, 1)
    found, _ = steps(
        gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO), G, 1
    )
    np.testing.assert_array_equal(found[0]["w"], expected[0]["w"])


def test_a_state_of_one_mesh_fits_another():
    flat = matrix_factorization_privatizer(
        Decaying, stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO
    )
    small, large = (
        flat.init(jax.tree.map(lambda x, m=m: jax.device_put(x, NamedSharding(m, P())), G))
        for m in (mesh_of(AUTO), mesh_of(AUTO, AUTO))
    )
    assert jax.tree.map(jnp.shape, small) == jax.tree.map(jnp.shape, large)


def test_padding_is_a_multiple_of_devices_too():
    mesh = jax.make_mesh((6,), ("data",), axis_types=(AUTO,), devices=jax.devices()[:6])
    leaf = jax.device_put(np.ones(5, np.float32), NamedSharding(mesh, P()))
    assert flat_like(leaf, np.float32).shape == (3072,)


def test_flat_and_back():
    leaf = jnp.arange(15.0).reshape(3, 5)
    flat = jnp.concatenate([leaf.ravel(), jnp.full(1009, jnp.nan)])
    np.testing.assert_array_equal(unflatten(flat, leaf), leaf)


def test_a_mesh_of_both_kinds_is_refused():
    privatizer = gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO)
    with pytest.raises(FixArgumentsError, match=r"all Auto or all Explicit, found.*Use DEFAULT"):
        privatizer.init(placed(mesh_of(EXPLICIT, AUTO)))


def test_inside_a_shard_map_it_is_refused():
    privatizer = gaussian_privatizer(stddev=STDDEV_OF_BITS, prng_key=threefry_key(5), **ZERO)

    def shard(g):
        return privatizer.update(g, privatizer.init(g))[0]

    shards = jax.shard_map(shard, mesh=mesh_of(AUTO, AUTO), in_specs=P(), out_specs=P())
    with pytest.raises(FixArgumentsError, match=r"a shard_map has already split.*DEFAULT inside"):
        jax.eval_shape(shards, G)
