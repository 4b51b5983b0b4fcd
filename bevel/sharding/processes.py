"""`bevel.processes` under another name: `python -m bevel.sharding.processes -- CMD` works too."""

from bevel.processes import Joined, join, launch

__all__ = ["Joined", "join", "launch"]

if __name__ == "__main__":
    import sys

    from bevel.processes.__main__ import main

    sys.exit(main())
