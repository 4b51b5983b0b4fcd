"""The mesh: make it, place trees on it, and see where everything lies."""

from bevel.sharding.describe import Description as Description
from bevel.sharding.describe import describe as describe
from bevel.sharding.devices import check_devices as check_devices
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
from bevel.sharding.visualize import Drawing as Drawing
from bevel.sharding.visualize import visualize as visualize
