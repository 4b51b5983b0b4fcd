"""Shards compared with those of JAX."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.inspection.simulate.shards import joined, named_in, over_devices, split

SIZES = {"x": 2, "y": 2, "z": 2}
SPECS = [P(), P("x"), P(None, "z"), P(("z", "x")), P("y", ("x", "z")), P(("y", "x"), "z")]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_split_and_joined_as_jax_does(spec):
    mesh = jax.make_mesh((2, 2, 2), tuple(SIZES), axis_types=(AxisType.Auto,) * 3)
    x = np.arange(8 * 8 * 3).reshape(8, 8, 3)
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    stacked = over_devices(lambda s: [s], SIZES, [spec])(split(x, spec, SIZES))[0]
    for shard in placed.addressable_shards:
        place = np.argwhere(mesh.devices == shard.device)[0]
        np.testing.assert_array_equal(stacked[tuple(place)], shard.data)
    np.testing.assert_array_equal(joined(stacked, spec, SIZES), x)


def test_axes_that_a_spec_names():
    assert named_in(P(None, ("x", "y"), "z")) == {"x", "y", "z"}
    assert named_in(P()) == set()
