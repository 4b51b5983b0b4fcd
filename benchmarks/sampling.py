"""How the cost of selecting batches grows with the number of examples, users and processes.

    python benchmarks/sampling.py

Draws one step of every sampler, with about 1e4 examples, and prints the median processor time of a
step and the peak of the memory that NumPy and Python allocate for it. Nothing is cached between
draws, except for samplers that depend on earlier steps, whose state is kept.
"""

import argparse
import datetime
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bevel
from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    ExamplesByUser,
    FixedBatchSampling,
    MultiOwnerGraph,
    MultiOwnerMinSepSampling,
    PartitionType,
    RandomAllocationSampling,
    UserSelectionStrategy,
)

SEED = 2**100 + 3
BATCH = 10_000
CYCLE = 100
SIZES = (10**6, 10**8, 10**10, 10**12)
INDEPENDENT = PartitionType.INDEPENDENT


def samplers(size: int) -> dict[str, Any]:
    """Samplers with about 1e4 examples in a step."""
    chance, steps = BATCH / size, 10**6
    return {
        "Poisson": CyclicPoissonSampling(chance, steps),
        "Poisson, truncated": CyclicPoissonSampling(chance, steps, BATCH),
        "cyclic, equal split": CyclicPoissonSampling(
            min(1.0, chance * CYCLE), steps, cycle_length=CYCLE
        ),
        "cyclic, independent": CyclicPoissonSampling(
            min(1.0, chance * CYCLE), steps, cycle_length=CYCLE, partition_type=INDEPENDENT
        ),
        "balls in bins": BallsInBinsSampling(size // BATCH, size // BATCH),
        "random allocation, once": RandomAllocationSampling(1, size // BATCH),
        "fixed size": FixedBatchSampling(BATCH, steps),
    }


def cost(draw: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The median processor time of a call in milliseconds, and its peak memory in megabytes."""
    draw()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        draw()
        times.append(time.process_time() - start)
    tracemalloc.start()
    draw()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return 1e3 * statistics.median(times), peak / 1e6


def table(title: str, columns: list[str], rows: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n| {title} | " + " | ".join(columns) + " |\n| --- |" + " --- |" * len(columns))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(f"{ms:.1f} ms, {mb:.1f} MB" for ms, mb in cells) + " |")


def by_examples(repeats: int) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    for size in SIZES:
        for name, sampler in samplers(size).items():
            found = cost(lambda s=sampler, n=size: s.batch(77, n, SEED), repeats)
            rows.setdefault(name, []).append(found)
        for min_sep in (10, 100):
            separated = BMinSepSampling(BATCH / size, 10**6, min_sep)
            state = separated.initial_state(size, SEED)
            _, state = separated.next_batch(state, size, SEED)
            found = cost(lambda p=separated, s=state, n=size: p.next_batch(s, n, SEED), repeats)
            rows.setdefault(f"minimum separation {min_sep}", []).append(found)
    table("sampler", [f"{size:.0e} examples" for size in SIZES], rows)


def by_batch(repeats: int) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    counts = (10**2, 10**3, 10**4, 10**5, 10**6)
    for size in (60_000, 10**9, 10**12):
        for count in counts:
            if count < size:
                sampler = FixedBatchSampling(count, 10)
                found = cost(lambda s=sampler, n=size: s.batch(3, n, SEED), repeats)
                rows.setdefault(f"{size:.0e} examples", []).append(found)
    table("fixed-size batch of", [f"{count:.0e}" for count in counts], rows)


def by_users(repeats: int) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    numbers = (10**4, 10**6, 10**7)
    for number in numbers:
        owned = np.random.default_rng(0).integers(1, 200, number)
        users = ExamplesByUser.from_offsets(np.append(0, np.cumsum(owned)))
        base = CyclicPoissonSampling(min(0.5, 1e5 / number), 10)
        for count, shuffle in ((1, False), (1, True), (4, True), (8, True)):
            sampler = UserSelectionStrategy(base, count, shuffle)
            ms, mb = cost(lambda s=sampler, u=users: s.batch(3, u, SEED), repeats)
            selected = len(sampler.batch(3, users, SEED))
            name = f"{count} of each user{', shuffled' if shuffle else ''}"
            rows.setdefault(name, []).append((1e3 * ms / selected, mb))
    columns = [f"{number:.0e} users" for number in numbers]
    print(f"\n| a row of | {' | '.join(columns)} |\n| --- |" + " --- |" * len(columns))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(f"{us:.2f} us" for us, _ in cells) + " |")


def by_processes(repeats: int) -> None:
    rows: dict[str, list[tuple[float, float]]] = {}
    counts = (1, 2, 8, 64)
    for name, sampler in samplers(10**12).items():
        for count in counts:
            found = cost(
                lambda s=sampler, p=count: s.batch(
                    77, 10**12, SEED, process_index=0, process_count=p
                ),
                repeats,
            )
            rows.setdefault(name, []).append(found)
    table("share of one process", [f"{count} processes" for count in counts], rows)


def of_owners() -> None:
    rng = np.random.default_rng(0)
    graph = MultiOwnerGraph.from_edges(
        np.repeat(np.arange(10**5), 2), rng.integers(2000, size=2 * 10**5), 10**5
    )
    sampler = MultiOwnerMinSepSampling(1000, 100, 10)
    state, times = sampler.initial_state(graph), []
    for _ in range(8):
        start = time.process_time()
        batch, state = sampler.next_batch(state, graph, SEED)
        times.append(f"{len(batch)} in {1e3 * (time.process_time() - start):.0f} ms")
    print(f"\nowners, 1e5 examples of 2 of 2000 owners, batches of up to 1000: {', '.join(times)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for part in (by_examples, by_batch, by_users, by_processes):
        part(options.repeats)
    of_owners()
    print(
        f"\n{platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
