"""Run one program as several processes: start them on this machine, or join a cluster."""

from bevel.processes.joining import Joined, join
from bevel.processes.launching import launch

__all__ = ["Joined", "join", "launch"]
