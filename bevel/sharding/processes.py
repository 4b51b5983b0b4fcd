"""`bevel.processes` under another name: `python -m bevel.sharding.processes -- CMD` works too."""

import sys

from bevel.processes import Joined, join, launch
from bevel.processes.__main__ import main

__all__ = ["Joined", "join", "launch"]

if __name__ == "__main__":
    sys.exit(main())
