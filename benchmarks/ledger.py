"""Time and size of a ledger against the number of its charges.

    python benchmarks/ledger.py --charges 1000,10000,100000,1000000

Charges are those of a run that is charged step by step, with a digest of each release. `append` is
the time of a charge without its fsync, and `fsync` is the time of one fsync on this disk. `open`
reads the ledger from its last summary, `full` adds up every line, and `spent` composes all charges.
"""

import argparse
import datetime
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bevel
from bevel.accounting import Ledger, dpsgd_event
from bevel.accounting.ledger import durable_files, locked_file
from bevel.accounting.ledger.event_json import event_to_json

EVENT = event_to_json(dpsgd_event(8.0, 1, sampling_prob=0.001))
TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def fsync_seconds(folder: Path) -> float:
    """The time of one fsync after a short write, on average."""
    with (folder / "probe").open("wb", buffering=0) as file:

        def write_and_sync() -> None:
            file.write(b"x" * 500)
            os.fsync(file.fileno())

        return timed(lambda: [write_and_sync() for _ in range(50)])[0] / 50


def measure(charges: int, folder: Path, *, full: bool = True) -> dict[str, float]:
    """Seconds of each operation, and bytes of a charge. `full` takes most of the time."""
    path = folder / f"{charges}.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        locked_file.sync = lambda descriptor: None  # fsync is measured apart

        def charge_all() -> None:
            for step in range(charges):
                run.charge(step, step + 1, EVENT, content=f"{step:032x}")

        found = {"append": timed(charge_all)[0] / charges}
        locked_file.sync = durable_files.sync
    found["bytes"] = path.stat().st_size / charges
    found["open"], ledger = timed(lambda: Ledger.read(path))
    found["spent"], _ = timed(lambda: ledger.spent(1e-6))
    if full:
        found["full"], _ = timed(lambda: Ledger.read(path, full=True))
    with Ledger.open(path, **TERMS) as ledger:
        found["compact"], _ = timed(ledger.compact)
    found["open after"], _ = timed(lambda: Ledger.read(path))
    return found


COLUMNS = {
    "append": lambda x: f"{1e3 * x:.3f} ms",
    "bytes": lambda x: f"{x:.0f} B",
    "open": lambda x: f"{x:.2f} s",
    "spent": lambda x: f"{x:.2f} s",
    "full": lambda x: f"{x:.1f} s",
    "compact": lambda x: f"{x:.2f} s",
    "open after": lambda x: f"{1e3 * x:.1f} ms",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--charges", default="1000,10000,100000,1000000")
    options = parser.parse_args()
    heads = ["charges", *(name.replace("bytes", "per charge") for name in COLUMNS)]
    print("| " + " | ".join(heads) + " |")
    print("| " + " | ".join(["---"] * len(heads)) + " |")
    with tempfile.TemporaryDirectory() as folder:
        Ledger.open(Path(folder) / "warm.jsonl", **TERMS).spent(1e-6)  # imports
        for charges in map(int, options.charges.split(",")):
            found = measure(charges, Path(folder))
            cells = [f"{charges:,}", *(show(found[name]) for name, show in COLUMNS.items())]
            print("| " + " | ".join(cells) + " |", flush=True)
        seconds = fsync_seconds(Path(folder))
    print(
        f"\nfsync {1e3 * seconds:.2f} ms. {platform.machine()} CPU, {os.cpu_count()} cores, "
        f"{datetime.date.today()}, Python {platform.python_version()}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
