"""`python -m bevel`: the same as the `bevel` command."""

import sys

from bevel.cli import main

if __name__ == "__main__":
    sys.exit(main())
