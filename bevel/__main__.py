"""`python -m bevel`, for where the `bevel` command is not on the path."""

import sys

from bevel.cli import main

if __name__ == "__main__":
    sys.exit(main())
