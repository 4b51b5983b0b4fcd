"""The mesh: make it, place trees on it, see what lies and moves there, and how it scales."""

from bevel.sharding.collectives import inspect_step as inspect_step
from bevel.sharding.describe import Description as Description
from bevel.sharding.describe import describe as describe
from bevel.sharding.devices import check_devices as check_devices
from bevel.sharding.doctor import doctor as doctor
from bevel.sharding.findings import Diagnosis as Diagnosis
from bevel.sharding.findings import Finding as Finding
from bevel.sharding.mesh import axis_sizes as axis_sizes
from bevel.sharding.mesh import make_mesh as make_mesh
from bevel.sharding.place import Placement as Placement
from bevel.sharding.place import place as place
from bevel.sharding.place import plan_placement as plan_placement
from bevel.sharding.rules import Rule as Rule
from bevel.sharding.rules import fsdp as fsdp
from bevel.sharding.rules import logical as logical
from bevel.sharding.rules import replicated as replicated
from bevel.sharding.rules import tensor as tensor
from bevel.sharding.scale import scale as scale
from bevel.sharding.scale_report import ScaleReport as ScaleReport
from bevel.sharding.scale_report import Speeds as Speeds
from bevel.sharding.scale_worker import PlacedStep as PlacedStep
from bevel.sharding.step_report import Collective as Collective
from bevel.sharding.step_report import StepReport as StepReport
from bevel.sharding.visualize import Drawing as Drawing
from bevel.sharding.visualize import visualize as visualize
