"""One program on several processes: start them on this machine, or join those of a cluster."""

from bevel.sharding.processes.joining import Joined as Joined
from bevel.sharding.processes.joining import join as join
from bevel.sharding.processes.launching import launch as launch
