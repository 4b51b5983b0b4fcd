"""One program on several processes: start them on this machine, or join those of a cluster."""

from bevel.processes.joining import (
    Joined,
    join,
)
from bevel.processes.launching import launch

__all__ = [
    "Joined",
    "join",
    "launch",
]
