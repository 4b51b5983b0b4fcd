"""Meshes: make one, place trees on it, look at what lies and moves there, and simulate it.

The tools that look at programs are in `bevel.inspection`, and those for several processes in
`bevel.processes`. Both are exported here too, and imported on first use.
"""

from typing import TYPE_CHECKING

from bevel.lazy import lazy_exports
from bevel.sharding.devices import check_devices
from bevel.sharding.mesh import axis_sizes, make_mesh
from bevel.sharding.place import Placement, place, plan_placement
from bevel.sharding.rules import Rule, fsdp, logical, replicated, tensor

if TYPE_CHECKING:
    from bevel.inspection.collectives import inspect_step as inspect_step
    from bevel.inspection.describe import Description as Description
    from bevel.inspection.describe import describe as describe
    from bevel.inspection.doctor import doctor as doctor
    from bevel.inspection.findings import Diagnosis as Diagnosis
    from bevel.inspection.findings import Finding as Finding
    from bevel.inspection.scale import scale as scale
    from bevel.inspection.scale_report import ScaleReport as ScaleReport
    from bevel.inspection.scale_report import Speeds as Speeds
    from bevel.inspection.scale_worker import PlacedStep as PlacedStep
    from bevel.inspection.simulate import shard_map_simulate as shard_map_simulate
    from bevel.inspection.simulate import simulate_shard_map as simulate_shard_map
    from bevel.inspection.step_report import Collective as Collective
    from bevel.inspection.step_report import StepReport as StepReport
    from bevel.inspection.visualize import Drawing as Drawing
    from bevel.inspection.visualize import visualize as visualize
    from bevel.processes import join as join
    from bevel.processes import launch as launch

__getattr__, __dir__, _lazy = lazy_exports(
    __name__,
    {
        "bevel.inspection": [
            "describe",
            "Description",
            "visualize",
            "Drawing",
            "inspect_step",
            "StepReport",
            "Collective",
            "doctor",
            "Diagnosis",
            "Finding",
            "scale",
            "ScaleReport",
            "Speeds",
            "PlacedStep",
            "simulate_shard_map",
            "shard_map_simulate",
        ],
        "bevel.processes": ["join", "launch"],
        ".": ["processes", "simulate"],
    },
)
__all__ = [
    "make_mesh",
    "axis_sizes",
    "place",
    "plan_placement",
    "Placement",
    "Rule",
    "fsdp",
    "tensor",
    "logical",
    "replicated",
    "check_devices",
    *_lazy,
]
