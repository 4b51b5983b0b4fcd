"""`bevel bench`: what clipping costs beside jax.grad, where the benchmarks are at hand."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import bevel
from bevel.errors import FixArgumentsError

SCRIPT = Path("benchmarks") / "clipping.py"
ABOUT = """usage: bevel bench [options of benchmarks/clipping.py]

What clipping costs beside jax.grad, on this machine. Options go on to benchmarks/clipping.py.

examples:
  bevel bench
  bevel bench --cases mlp,gpt_loop_32 --dtype bfloat16
"""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(ABOUT)
        return 0
    return subprocess.run([sys.executable, str(script()), *arguments], check=False).returncode


def script() -> Path:
    """The benchmark, in the checkout that bevel is imported from, or in the present folder."""
    places = [Path(bevel.__file__).resolve().parents[1], Path.cwd()]
    for place in places:
        if (place / SCRIPT).is_file():
            return place / SCRIPT
    raise FixArgumentsError(
        f"{SCRIPT} is in bevel's repository, not in the installed package: run this in a checkout "
        "of it."
    )
