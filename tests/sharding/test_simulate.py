"""`bevel.sharding.simulate`, the name by which users simulate `shard_map`."""

import bevel
from bevel.inspection import simulate


def test_names_are_those_of_the_inspection_tools():
    for name in ("simulate_shard_map", "shard_map_simulate"):
        assert getattr(bevel.sharding.simulate, name) is getattr(simulate, name)
        assert getattr(bevel.sharding, name) is getattr(simulate, name)
