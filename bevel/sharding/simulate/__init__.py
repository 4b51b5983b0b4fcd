"""Run `shard_map` programs on one device."""

from bevel.sharding.simulate.exercise import shard_map_simulate as shard_map_simulate
from bevel.sharding.simulate.shard_map import simulate_shard_map as simulate_shard_map
