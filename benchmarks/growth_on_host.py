"""The rows of `growth.py` that need no device: examples, users, steps and events."""

import functools
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import sampling

from bevel.batch_selection import (
    BMinSepSampling,
    CyclicPoissonSampling,
    ExamplesByUser,
    UserSelectionStrategy,
)

SEED = sampling.SEED
Rows = Iterator[tuple[str, str, Sequence[float], Sequence[float], float]]


def both(
    name: str,
    sizes: Sequence[float],
    costs: Sequence[tuple[float, float]],
    expected: tuple[float, float] = (0, 0),
) -> Rows:
    """The rows of a cost that was measured as milliseconds and megabytes."""
    yield f"{name}: time", "s", sizes, [1e-3 * ms for ms, _ in costs], expected[0]
    yield f"{name}: memory", "B", sizes, [1e6 * mb for _, mb in costs], expected[1]


def by_examples(quick: bool) -> Rows:
    """The draw of a step with about 1e4 examples."""
    sizes = sampling.SIZES[:2] if quick else sampling.SIZES
    repeats = 3 if quick else 7
    for name in sampling.samplers(10**6):
        costs = []
        for size in sizes:
            sampler = sampling.samplers(size)[name]
            costs.append(sampling.cost(functools.partial(sampler.batch, 77, size, SEED), repeats))
        yield from both(f"{name}, draw of a step", sizes, costs)
    costs = []
    for size in sizes:
        separated = BMinSepSampling(sampling.BATCH / size, 10**6, 10)
        state = separated.next_batch(separated.initial_state(size, SEED), size, SEED)[1]
        draw = functools.partial(separated.next_batch, state, size, SEED)
        costs.append(sampling.cost(draw, repeats))
    yield from both("minimum separation 10, draw of a step", sizes, costs)


def by_users(quick: bool) -> Rows:
    """The draw of 5e3 users with 4 examples each, and opening users that are given by offsets."""
    sizes = (10**4, 10**5) if quick else (10**4, 10**5, 10**6, 10**7)
    drawn, opened = [], []
    for size in sizes:
        owned = np.random.default_rng(0).integers(4, 200, size)
        offsets = np.append(0, np.cumsum(owned))
        users = ExamplesByUser.from_offsets(offsets)
        sampler = UserSelectionStrategy(CyclicPoissonSampling(5e3 / size, 10), 4, True)
        drawn.append(sampling.cost(functools.partial(sampler.batch, 3, users, SEED), 5))
        opened.append(sampling.cost(functools.partial(ExamplesByUser.from_offsets, offsets), 5))
    yield from both("4 examples of each of 5e3 users, draw of a step", sizes, drawn)
    yield from both("users by offsets, opened", sizes, opened, (1, 0))


def timed(function: Callable[[], Any]) -> float:
    """Processor seconds of one call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def by_steps(quick: bool) -> Rows:
    """A run that is released and charged at every step."""
    sizes = (300, 1000, 3000) if quick else (1000, 10_000, 100_000)
    with tempfile.TemporaryDirectory() as root:
        yield from of_ledger(sizes, Path(root))
        yield from of_files(sizes, Path(root))
        yield from of_report(sizes[:2] if quick else sizes, Path(root))


def of_ledger(sizes: Sequence[int], root: Path) -> Rows:
    found = [ledger.measure(size, root, full=False) for size in sizes]
    for name, title, unit, expected in (
        ("append", "ledger: a charge without its fsync", "s", 0),
        ("bytes", "ledger: bytes of a charge", "B", 0),
        ("open", "ledger: opened", "s", 1),
        ("spent", "ledger: epsilon of all charges", "s", 1),
        ("open after", "ledger: opened after it was compacted", "s", 0),
    ):
        yield title, unit, sizes, [row[name] for row in found], expected


def of_files(sizes: Sequence[int], root: Path) -> Rows:
    """Opening the records of a run, which a resumed run does, and adding to them."""
    from bevel.training.folder import RunFolder
    from bevel.training.metrics_files import MetricsFiles
    from bevel.training.releases import ReleaseRecord, Releases

    opened, added, metrics, lines = [], [], [], []
    for size in sizes:
        path = root / f"releases-{size}.jsonl"
        record = {"attempt": 0, "before": ["0" * 16] * 3, "after": ["1" * 16] * 3}
        record |= {"rows": ["2" * 32], "exactly": {"program": "3" * 64}}
        with path.open("w") as file:
            for step in range(size):
                file.write(json.dumps(record | {"first": step, "stop": step + 1}) + "\n")
        opened.append(timed(lambda p=path: Releases(p, write=False)))
        records = Releases(path, write=False)
        more = [ReleaseRecord(**record, first=size + k, stop=size + k + 1) for k in range(20)]
        added.append(timed(lambda r=records, m=more: [r.add(one) for one in m]) / len(more))
        folder = RunFolder(root / f"run-{size}")
        folder.create()
        with (folder.released / "metrics.jsonl").open("w") as file:
            file.writelines(metrics_line(step) + "\n" for step in range(1, size + 1))
        metrics.append(timed(lambda f=folder: MetricsFiles(f, tensorboard=False)))
        files = MetricsFiles(folder, tensorboard=False)
        later = [{"step": size + k, "epsilon": 1.0, "attempt": 0} for k in range(2, 22)]
        lines.append(timed(lambda f=files, m=later: [f.write_metrics(x) for x in m]) / len(later))
        files.close()
    yield "records of releases: opened", "s", sizes, opened, 1
    yield "records of releases: one added", "s", sizes, added, 0
    yield "metrics: opened", "s", sizes, metrics, 1
    yield "metrics: a line added", "s", sizes, lines, 0


def metrics_line(step: int) -> str:
    line = {"step": step, "epsilon": 0.01 * step**0.5, "delta": 1e-6, "attempt": 0}
    return json.dumps(line | {"accuracy": 1 - 1 / (1 + step)})


def of_report(sizes: Sequence[int], root: Path) -> Rows:
    """The page of a run with a line of metrics for each step."""
    import jax
    import jax.numpy as jnp
    import optax

    from bevel.execution_plan import DPSGDConfig
    from bevel.report import write_report
    from bevel.training import RunOptions, Trainer

    jax.config.update("jax_enable_compilation_cache", False)
    folder = root / "reported"
    config = DPSGDConfig.default(
        num_examples=100, expected_batch_size=10, iterations=2, noise_multiplier=1.0
    )
    trainer = Trainer(
        config=config,
        loss_fn=lambda params, x, prng: (jnp.mean((x @ params["w"]) ** 2), {}),
        optimizer=optax.sgd(0.1),
    )
    data = np.ones((100, 4), np.float32)
    trainer.fit(
        data,
        {"w": np.ones((4, 2), np.float32)},
        folder=folder,
        options=RunOptions(progress=False, tensorboard=False, delta=1e-6, compilations=1),
    )
    seconds, size_of_page = [], []
    for size in sizes:
        lines = (metrics_line(step) + "\n" for step in range(1, size + 1))
        (folder / "released" / "metrics.jsonl").write_text("".join(lines))
        write_report(folder)
        seconds.append(timed(lambda: write_report(folder)))
        size_of_page.append((folder / "released" / "report.html").stat().st_size)
    yield "report: written", "s", sizes, seconds, 1
    yield "report: size", "B", sizes, size_of_page, 0


def by_events(quick: bool) -> Rows:
    """Epsilon of runs with different noise, composed in one ledger, and the peak of the process."""
    import dp_accounting

    from bevel.accounting import dpsgd_event, epsilon

    def cost_of(size: int) -> float:
        events = (
            dpsgd_event(1.0 + k / size, 100, sampling_prob=0.001 * (1 + k / size))
            for k in range(size)
        )
        composed = dp_accounting.ComposedDpEvent(tuple(events))
        relation = "ADD_OR_REMOVE_ONE"
        return timed(lambda: epsilon(composed, delta=1e-6, neighboring_relation=relation))

    cost_of(2)  # imports
    sizes = (3, 10) if quick else (10, 100, 1000)
    before, seconds, memory = peak_memory(), [], []
    for size in sizes:
        seconds.append(cost_of(size))
        memory.append(peak_memory() - before)
    yield "epsilon of different events", "s", sizes, seconds, 1
    yield "epsilon of different events: memory", "B", sizes, memory, 0


def peak_memory() -> int:
    """Bytes of the largest size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
