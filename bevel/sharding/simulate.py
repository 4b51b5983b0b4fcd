"""`bevel.inspection.simulate`: run `shard_map` programs on one device."""

from bevel.inspection.simulate import shard_map_simulate, simulate_shard_map

__all__ = ["shard_map_simulate", "simulate_shard_map"]
