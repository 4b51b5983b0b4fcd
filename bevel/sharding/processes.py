"""`bevel.processes`, also as `python -m bevel.sharding.processes --processes 2 -- CMD`."""

import sys

from bevel.processes import Joined, join, launch
from bevel.processes.__main__ import main

__all__ = ["Joined", "join", "launch"]

if __name__ == "__main__":
    sys.exit(main())
