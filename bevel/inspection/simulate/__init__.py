"""Run `shard_map` programs on one device."""

from bevel.inspection.simulate.exercise import shard_map_simulate
from bevel.inspection.simulate.shard_map import simulate_shard_map

__all__ = ["shard_map_simulate", "simulate_shard_map"]
