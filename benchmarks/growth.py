"""How time and memory grow with the work: one table, from one command.

    python benchmarks/growth.py                     # all rows: about ten minutes
    python benchmarks/growth.py --quick             # smaller sizes: two minutes
    python benchmarks/growth.py --only steps,events

| axis       | what grows                      | what is measured                             |
| ---------- | ------------------------------- | -------------------------------------------- |
| examples   | the data set, at one batch size | the draw of a step, for every sampler        |
| users      | the users, at one batch size    | the draw of a step, and opening the users    |
| steps      | steps that were released        | ledger, metrics, records, report             |
| events     | different events of one ledger  | epsilon of their composition                 |
| leaves     | arrays of parameters            | compiling the noise and the clipped gradient |
| parameters | elements of one array           | init, release, checkpoint, memory            |
| processes  | processes with the same devices | a step, a release, the start, a share        |

An exponent is the slope of the logarithm of the cost against that of the size, fitted to the
largest three sizes: 0 is constant, 1 is linear. The last column is the exponent by design. Times
are processor times where one thread does the work, so that other programs disturb them less. How
the cost of clipping grows with the batch, sequence and model is in `clipping_growth.py`.
"""

import argparse
import dataclasses
import datetime
import importlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

AXES = {
    "examples": "growth_on_host",
    "users": "growth_on_host",
    "steps": "growth_on_host",
    "events": "growth_on_host",
    "leaves": "growth_on_devices",
    "parameters": "growth_on_devices",
    "processes": "growth_on_devices",
}
FITTED = 3  # the number of largest sizes that an exponent is fitted to
PREFIXES = {"s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")), "x": ((1.0, "x"),)}
PREFIXES["B"] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclasses.dataclass(frozen=True)
class Growth:
    """One cost at several sizes.

    Attributes:
      cost: what was measured.
      unit: "s", "B" (bytes) or "x" (a ratio).
      expected: the exponent by design.
    """

    axis: str
    cost: str
    unit: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]
    expected: float

    @property
    def exponent(self) -> float:
        return exponent(self.sizes, self.values)

    def cells(self) -> list[str]:
        sizes = ", ".join(short_size(size) for size in self.sizes)
        values = ", ".join(short_value(value, self.unit) for value in self.values)
        return [
            self.axis,
            self.cost,
            sizes,
            values,
            f"{self.exponent + 0.0:.1f}".replace("-0.0", "0.0"),
            f"{self.expected:g}",
        ]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The least-squares slope of log(value) over log(size), of the largest sizes.

    Costs of zero (below what a clock or a counter shows) count as constant.
    """
    pairs = sorted(zip(sizes, values, strict=True))[-FITTED:]
    if len(pairs) < 2 or any(value <= 0 for _, value in pairs):
        return 0.0
    x, y = ([math.log(pair[k]) for pair in pairs] for k in range(2))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return slope / sum((a - mean_x) ** 2 for a in x)


def short_size(size: float) -> str:
    text = f"{size:.0e}".replace("e+0", "e").replace("e+", "e")
    return text if size >= 1000 and float(text) == size else f"{size:g}"


def short_value(value: float, unit: str) -> str:
    scales = PREFIXES[unit]
    scale, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    scaled = value / scale
    text = f"{scaled:.0f} {name}" if scaled >= 99.5 else f"{scaled:.2g} {name}"
    return text.replace(" x", "x")


def measured(axes: Sequence[str], quick: bool) -> Iterator[Growth]:
    """Measures one axis after the other."""
    for axis in axes:
        begun = time.perf_counter()
        module = importlib.import_module(AXES[axis])
        for cost, unit, sizes, values, expected in getattr(module, f"by_{axis}")(quick):
            yield Growth(axis, cost, unit, tuple(sizes), tuple(values), expected)
        print(f"{axis}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


def about() -> str:
    import jax

    import bevel

    return (
        f"{platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"Python {platform.python_version()}, jax {jax.__version__}, bevel {bevel.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default=",".join(AXES), help="axes, separated by commas")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--json", type=Path, default=Path("build/growth.json"))
    options = parser.parse_args()
    axes = options.only.split(",")
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (known: {', '.join(AXES)})")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parent), str(here.parents[1])]
    heads = ["grows", "cost", "sizes", "measured", "exponent", "expected"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    rows = []
    for row in measured(axes, options.quick):
        rows.append(row)
        print("| " + " | ".join(row.cells()) + " |", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps([dataclasses.asdict(r) | {"exponent": r.exponent} for r in rows], indent=1)
        + "\n"
    )
    print(f"\n{about()}")


if __name__ == "__main__":
    main()
