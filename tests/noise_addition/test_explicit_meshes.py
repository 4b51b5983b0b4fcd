"""Noise on Explicit meshes: every layout, sharded or replicated, with the bits of one device."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bevel.matrix_factorization import toeplitz
from bevel.noise_addition import (
    SupportedStrategies,
    gaussian_privatizer,
    matrix_factorization_privatizer,
)

STEPS = 2
SHAPES = {"matrix": (8, 4), "vector": (4,)}


def privatizer(kind, strategy=SupportedStrategies.DEFAULT):
    options = {"stddev": 1.0, "prng_key": 3, "intermediate_strategy": strategy}
    if kind == "gaussian":
        return gaussian_privatizer(**options)
    matrix = toeplitz.inverse_as_streaming_matrix(np.array([1.0, 0.5, 0.25]))
    return matrix_factorization_privatizer(matrix, **options)


def noised(kind, strategy, gradient, compiled):
    """The noised gradient of every step. `init` is part of the program."""
    transform = privatizer(kind, strategy)

    def steps(gradient):
        state, results = transform.init(gradient), []
        for _ in range(STEPS):
            result, state = transform.update(gradient, state)
            results.append(result)
        return results

    return (jax.jit(steps) if compiled else steps)(gradient)


def gradient(place=lambda x, name: x):
    return {name: place(jnp.ones(shape), name) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def on_one_device():
    return {
        kind: noised(kind, SupportedStrategies.DEFAULT, gradient(), False)
        for kind in ("gaussian", "correlated")
    }


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("spec", [PartitionSpec("x", "y"), PartitionSpec()], ids=str)
@pytest.mark.parametrize("strategy", SupportedStrategies, ids=lambda s: s.name)
@pytest.mark.parametrize("kind", ["gaussian", "correlated"])
def test_noise_is_that_of_one_device(kind, strategy, spec, compiled, on_one_device):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    specs = {"matrix": spec, "vector": PartitionSpec()}
    with jax.set_mesh(mesh) if compiled else contextlib.nullcontext():
        placed = gradient(lambda x, name: jax.device_put(x, NamedSharding(mesh, specs[name])))
        results = noised(kind, strategy, placed, compiled)
    for found, expected in zip(results, on_one_device[kind], strict=True):
        for name, x in found.items():
            np.testing.assert_array_equal(np.asarray(x), np.asarray(expected[name]))
            own = NamedSharding(mesh, specs[name])
            assert x.sharding.is_equivalent_to(own, x.ndim), x.sharding


def test_replicas_of_a_leaf_are_equal():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    placed = jax.device_put(jnp.zeros((8, 4)), NamedSharding(mesh, PartitionSpec()))
    (result, _) = noised("gaussian", SupportedStrategies.DEFAULT, {"matrix": placed}, True)
    copies = [np.asarray(shard.data) for shard in result["matrix"].addressable_shards]
    assert len(copies) == 8 and all(np.array_equal(copies[0], copy) for copy in copies)
