"""Run `shard_map` programs on one device, as `bevel.inspection.simulate` does."""

from bevel.inspection.simulate import shard_map_simulate, simulate_shard_map

__all__ = ["shard_map_simulate", "simulate_shard_map"]
