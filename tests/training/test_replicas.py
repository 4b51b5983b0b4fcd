"""Replicas that differ are detected, whatever the sharding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.errors import RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training.replicas import check_replicas, replica_comparison

MESH = make_mesh("data=4,model=2")


def placed(spec, odd=None):
    """Returns an array whose shard on device number `odd` differs."""
    values = np.arange(16, dtype=np.float32).reshape(8, 2)
    sharding = NamedSharding(MESH, spec)
    parts = []
    for number, (device, index) in enumerate(
        sharding.addressable_devices_indices_map((8, 2)).items()
    ):
        part = values[index].copy()
        if number == odd:
            part[0, 0] += 1e-6 + part[0, 0] * 1e-6
        parts.append(jax.device_put(part, device))
    return jax.make_array_from_single_device_arrays((8, 2), sharding, parts)


@pytest.mark.parametrize("spec", [P(), P("data"), P(None, "model")])
def test_an_array_with_a_replica_that_differs_is_named(spec):
    check_replicas({"w": placed(spec), "b": placed(P())}, MESH)
    with pytest.raises(RestoreCheckpointError, match="replicas of w differ"):
        check_replicas({"w": placed(spec, odd=3), "b": placed(P())}, MESH)


def test_arrays_without_replicas_are_not_compared():
    check_replicas({"w": placed(P("data", "model"), odd=3), "x": jnp.ones(3)}, MESH)
    check_replicas({"x": jnp.ones(3)}, MESH)
    check_replicas({"x": jnp.ones(3)}, None)


def test_each_array_is_compared_by_itself():
    """Also if arrays of several shardings are compared at once."""
    specs = {f"{k}{spec}": spec for k in range(3) for spec in (P(), P("data"), P(None, "model"))}
    for odd in specs:
        tree = {name: placed(spec, 3 if name == odd else None) for name, spec in specs.items()}
        with pytest.raises(RestoreCheckpointError) as raised:
            check_replicas(tree, MESH)
        assert f"replicas of {odd} differ" in str(raised.value)


def test_the_number_of_collectives_does_not_grow_with_the_number_of_arrays():
    def collectives(arrays):
        specs = (P(), P("data")) * arrays
        compare = replica_comparison(MESH, specs)
        program = str(jax.make_jaxpr(compare)([placed(spec) for spec in specs]))
        return len(re.findall(r"\bpm(?:ax|in)\[", program))

    assert collectives(1) == collectives(10) == 5  # two for each kind of sharding, and one of all
