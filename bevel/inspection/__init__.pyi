# ruff: noqa: I001 (in the order of the documentation)
from bevel.inspection.describe import describe as describe
from bevel.inspection.describe import Description as Description
from bevel.inspection.visualize import visualize as visualize
from bevel.inspection.visualize import Drawing as Drawing
from bevel.inspection.collectives import inspect_step as inspect_step
from bevel.inspection.step_report import StepReport as StepReport
from bevel.inspection.step_report import Collective as Collective
from bevel.inspection.doctor import doctor as doctor
from bevel.inspection.findings import Diagnosis as Diagnosis
from bevel.inspection.findings import Finding as Finding
from bevel.inspection.scale import scale as scale
from bevel.inspection.scale_report import ScaleReport as ScaleReport
from bevel.inspection.scale_report import Speeds as Speeds
from bevel.inspection.scale_worker import PlacedStep as PlacedStep
from bevel.inspection.simulate import simulate_shard_map as simulate_shard_map
from bevel.inspection.simulate import shard_map_simulate as shard_map_simulate
