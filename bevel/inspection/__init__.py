"""Inspect programs and arrays on a mesh: where arrays are, what a step sends, how it scales."""

from bevel.inspection.collectives import inspect_step
from bevel.inspection.describe import Description, describe
from bevel.inspection.doctor import doctor
from bevel.inspection.findings import Diagnosis, Finding
from bevel.inspection.scale import scale
from bevel.inspection.scale_report import ScaleReport, Speeds
from bevel.inspection.scale_worker import PlacedStep
from bevel.inspection.simulate import shard_map_simulate, simulate_shard_map
from bevel.inspection.step_report import Collective, StepReport
from bevel.inspection.visualize import Drawing, visualize

__all__ = [
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
]
