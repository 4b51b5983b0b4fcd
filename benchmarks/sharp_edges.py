"""The table of the sharp edges, with the machine, date and versions that README quotes.

    python benchmarks/sharp_edges.py
"""

import datetime
import os
import platform
import sys

import jax

import bevel
from bevel import demo

if __name__ == "__main__":
    demo.main()
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}, jax {jax.__version__}, bevel {bevel.__version__}"
    )
