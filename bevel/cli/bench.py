"""`bevel bench`: measures what clipping costs relative to jax.grad, in a checkout of bevel."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import bevel
from bevel.errors import FixArgumentsError

SCRIPT = Path("benchmarks") / "clipping.py"
ABOUT = """usage: bevel bench [options of benchmarks/clipping.py]

Measure what clipping costs relative to jax.grad on this machine. All options are passed on to
benchmarks/clipping.py.

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
    """The benchmark in the checkout that bevel is imported from, or in the working directory."""
    for root in (Path(bevel.__file__).resolve().parents[1], Path.cwd()):
        if (root / SCRIPT).is_file():
            return root / SCRIPT
    raise FixArgumentsError(
        f"{SCRIPT} is in bevel's repository, not in the installed package: run this command in a "
        "checkout."
    )
