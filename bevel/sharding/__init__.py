"""The mesh: what a compiled step moves on it, what is wrong with that, and how it would scale."""

from bevel.sharding.collectives import inspect_step as inspect_step
from bevel.sharding.doctor import doctor as doctor
from bevel.sharding.findings import Diagnosis as Diagnosis
from bevel.sharding.findings import Finding as Finding
from bevel.sharding.scale import scale as scale
from bevel.sharding.scale_report import ScaleReport as ScaleReport
from bevel.sharding.scale_report import Speeds as Speeds
from bevel.sharding.scale_worker import PlacedStep as PlacedStep
from bevel.sharding.step_report import Collective as Collective
from bevel.sharding.step_report import StepReport as StepReport
