"""Checksums are equal on every mesh, and differ for different bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding import make_mesh
from bevel.training.digest import checksums_of, digest

X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8) / 7


def test_it_is_the_same_on_every_mesh():
    expected = digest({"x": jnp.asarray(X)})
    for axes, spec in [
        ("data=8", P("data")),
        ("data=4,model=2", P("model", "data")),
        ("data=4,model=2", P()),
    ]:
        placed = jax.device_put(X, NamedSharding(make_mesh(axes), spec))
        assert digest({"x": placed}) == expected


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int8", "uint16", "bool", "complex64"]
)
def test_a_flipped_bit_or_an_exchanged_pair_changes_it(dtype):
    x = jnp.asarray(X, dtype) if dtype != "bool" else jnp.asarray(X) % 2 > 1
    one = digest(x)
    assert len(one) == 1 and len(one[0]) == 16
    values = np.array(x)
    flat = values.reshape(-1).view(np.uint8)
    flat[len(flat) // 2] ^= 1
    assert digest(jnp.asarray(values)) != one
    exchanged = np.array(x)
    exchanged[[0, 9]] = exchanged[[9, 0]]
    if (exchanged != np.array(x)).any():
        assert digest(jnp.asarray(exchanged)) != one


def test_zeros_of_different_lengths_and_trees_differ():
    assert digest(jnp.zeros(4)) != digest(jnp.zeros(5))
    assert digest({"a": jnp.zeros(2), "b": jnp.ones(2)}) != digest(
        {"a": jnp.ones(2), "b": jnp.zeros(2)}
    )
    assert digest({}) == [] and digest({"a": None}) == []
    assert digest(jnp.float32(0.0)) != digest(jnp.float32(-0.0))


def test_keys_have_checksums_too():
    one, other = ({"k": jax.random.key(seed), "x": jnp.ones(2)} for seed in (1, 2))
    assert digest(one) == digest(one) and digest(one)[0] != digest(other)[0]


@pytest.mark.parametrize("kinds", ["Auto", "Explicit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_it_forms_no_array_of_the_size_of_a_leaf(dtype, kinds):
    mesh = make_mesh("data=4,model=2", axis_types=getattr(AxisType, kinds))
    specs = P(), P("data"), P("model", "data"), P(None, "model")
    leaves = [jax.device_put(jnp.ones((256, 64), dtype), NamedSharding(mesh, s)) for s in specs]
    compiled = checksums_of.lower(
        [*leaves, jnp.ones(1 << 14, dtype), jnp.ones((), dtype)]
    ).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * memory.argument_size_in_bytes
