"""The kernel agrees with XLA's program for the same rounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.noise_addition import chacha20, chacha20_kernel
from bevel.noise_addition.chacha20 import BlockPurpose
from bevel.sharding.shard_generation import Shard

KEY = jnp.arange(8, dtype=np.uint32) * np.uint32(0x9E3779B9)


def by_kernel(monkeypatch):
    """Makes `chacha20` use the kernel in interpret mode."""
    real = chacha20_kernel.blocks
    monkeypatch.setattr(chacha20_kernel, "available", lambda: True)
    interpreted = functools.partial(real, interpret=True)
    monkeypatch.setattr(chacha20_kernel, "blocks", interpreted)


@pytest.mark.parametrize("shape", [(), (1,), (300,), (3, 256)])
def test_gives_the_words_of_the_compiled_program(shape, monkeypatch):
    size = int(np.prod(shape, dtype=int))
    low = jnp.arange(size, dtype=np.uint32).reshape(shape) - np.uint32(2)
    counter = (low + np.uint32(7), low)
    plain = chacha20.blocks(KEY, counter, BlockPurpose.SPLIT, 5)
    by_kernel(monkeypatch)
    words = chacha20.blocks(KEY, counter, BlockPurpose.SPLIT, 5)
    assert len(words) == 16
    for one, other in zip(words, plain, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.shape == shape


def test_every_block_can_have_its_own_key(monkeypatch):
    rng = np.random.default_rng(0)
    key = jnp.asarray(rng.integers(0, 2**32, (8, 300), np.uint32))
    low = jnp.arange(300, dtype=np.uint32)
    plain = chacha20.blocks(key, (low, low), BlockPurpose.BITS)
    one = chacha20.blocks(key[:, 7], (low, low), BlockPurpose.BITS)
    np.testing.assert_array_equal(plain[:, 7], one[:, 7])
    by_kernel(monkeypatch)
    found = chacha20.blocks(key, (low, low), BlockPurpose.BITS)
    np.testing.assert_array_equal(found, plain)


@pytest.mark.full
def test_bits_and_children_are_the_same(monkeypatch):
    key = jax.random.wrap_key_data(KEY, impl=chacha20.CHACHA20)

    def drawn():
        children = jax.random.split(jax.random.fold_in(key, 3), 2)
        return jax.random.key_data(children), jax.random.bits(children[1], (5, 7), np.uint32)

    plain = drawn()
    by_kernel(monkeypatch)
    jax.clear_caches()
    for one, other in zip(drawn(), plain, strict=True):
        np.testing.assert_array_equal(one, other)
    jax.clear_caches()


def test_leaves_that_are_drawn_together_share_one_kernel(monkeypatch):
    keys = jnp.stack([KEY, KEY + np.uint32(1), KEY ^ np.uint32(9)])
    shard = Shard.all_of((5, 13))
    plain = [chacha20.stream(key, shard, 64) for key in keys]
    by_kernel(monkeypatch)
    together = jax.vmap(lambda key: chacha20.stream(key, shard, 64))
    for found, expected in zip(together(keys), zip(*plain, strict=True), strict=True):
        np.testing.assert_array_equal(found, jnp.stack(expected))
    assert str(jax.make_jaxpr(together)(keys)).count("pallas_call[") == 1


def test_no_kernel_on_a_cpu():
    assert not chacha20_kernel.available()


@pytest.mark.parametrize(
    "devices, manual, answer", [(1, False, True), (8, False, False), (8, True, True)]
)
def test_a_kernel_is_never_split_by_the_compiler(devices, manual, answer, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    found = []

    def body(x):
        found.append(chacha20_kernel.available())
        return x

    if manual:
        spec = jax.sharding.PartitionSpec("data")
        jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec), jnp.zeros(8))
    else:
        body(None)
    assert found == [answer]
