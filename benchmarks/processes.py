"""What it costs to split the devices of one machine among 1, 2 and 4 processes.

    python benchmarks/processes.py

The same `Trainer.fit`, in a folder, runs at once as one process with four virtual devices, two with
two, and four with one. They take turns of a few steps, so that whatever else the machine does meets
all of them. Beside bevel, the same processes take steps of plain JAX (a gradient, summed over the
devices by the partitioner, and SGD) on rows of the same size: what these lose is the runtime's. A
ratio is the median, over the rounds, of the time of a turn to that of one process in that round.

Steps are timed between releases, and a release is the time of two steps with a release between
them, less that of two steps. Host collectives are calls in which the processes wait for each other
outside of the compiled step: those of bevel, and those of Orbax.
"""

import argparse
import collections
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LAYOUTS = {"1 x 4": (1, 4), "2 x 2": (2, 2), "4 x 1": (4, 1)}
DEVICES = 4
KINDS = ("plain", "steps", "release")
SIZES = {"width": 256, "layers": 4, "rows": 4096, "steps": 10, "rounds": 9}
POLL = 0.002  # seconds


def wait_for(path: Path, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not appear")
        time.sleep(POLL)


# The processes of a layout.


class HostCollectives:
    """Counts and times the calls in which processes wait for each other outside of the step."""

    def __init__(self) -> None:
        import orbax.checkpoint as ocp
        from jax.experimental import multihost_utils

        self.calls: dict[str, list[float]] = {"bevel": [], "Orbax": []}
        self._inside = False
        for name in ("broadcast_one_to_all", "process_allgather", "sync_global_devices"):
            self.count(multihost_utils, name, "bevel")
        self.count(ocp.multihost, "sync_global_processes", "Orbax")
        internal: Any = sys.modules["orbax.checkpoint._src.multihost.multihost"]
        self.count(internal, "sync_global_processes", "Orbax")

    def count(self, module: Any, name: str, whose: str) -> None:
        function = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if self._inside:  # one may call another
                return function(*arguments, **options)
            begun, self._inside = time.perf_counter(), True
            try:
                return function(*arguments, **options)
            finally:
                self._inside = False
                self.calls[whose].append(time.perf_counter() - begun)

        setattr(module, name, counted)


class Turns:
    """Lets this process go on when it is its turn, and reports how long the turn took.

    A period has `steps` steps, one that ends with a release, and one after it.
    """

    def __init__(self, folder: Path, layout: str, steps: int, plain: Callable[[int], None]) -> None:
        import jax

        self.folder, self.layout, self.steps, self.plain = folder, layout, steps, plain
        self.period = steps + 2
        self.turn, self.begun = 0, time.perf_counter()
        self.collectives = HostCollectives()
        self.first = jax.process_index() == 0

    def advance(self, step: int) -> None:
        """Called by `fit` after each step."""
        place = step % self.period
        if place == 1:
            self.next_turn()
            self.plain(self.steps)
            self.next_turn()
        elif place == self.steps + 1:
            self.next_turn()

    def next_turn(self) -> None:
        """Ends a turn once the devices are idle, and waits for the next."""
        import jax

        jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted()])
        seconds = time.perf_counter() - self.begun
        if self.first:
            found = {"seconds": seconds, "collectives": self.collectives.calls}
            path = self.folder / f"{self.layout}.{self.turn}.done"
            path.with_suffix(".tmp").write_text(json.dumps(found))
            path.with_suffix(".tmp").rename(path)
        wait_for(self.folder / f"{self.layout}.{self.turn}.go")
        self.turn += 1
        self.collectives.calls = {whose: [] for whose in self.collectives.calls}
        self.begun = time.perf_counter()


class Jobs:
    """The two programs that are compared: a step of plain JAX, and `Trainer.fit`."""

    def __init__(self, width: int, layers: int, rows: int) -> None:
        import jax
        import numpy as np
        import optax
        from jax.sharding import NamedSharding, PartitionSpec

        from bevel.sharding import make_mesh

        self.rows, self.mesh, self.optimizer = rows, make_mesh(f"data={DEVICES}"), optax.sgd(0.1)
        rng = np.random.default_rng(0)
        self.data = rng.normal(size=(20 * rows, width)).astype(np.float32)
        self.params = {
            f"layer{k}": rng.normal(0, width**-0.5, (width, width)).astype(np.float32)
            for k in range(layers)
        }
        everywhere, split = (
            NamedSharding(self.mesh, PartitionSpec(*axes)) for axes in ((), ("data",))
        )
        x = self.data[:rows]
        x = jax.make_array_from_callback(x.shape, split, lambda index: x[index])
        params = jax.device_put(self.params, everywhere)
        state = jax.device_put(self.optimizer.init(self.params), everywhere)
        step = jax.jit(self.plain_step, donate_argnums=(0, 1))
        self.plain = step.lower(params, state, x).compile()
        self._inputs: list[Any] = [params, state, x]
        self.take_plain_steps(1)

    @staticmethod
    def loss(params: Any, x: Any, prng: Any) -> Any:
        import jax.numpy as jnp

        for layer in params.values():
            x = jnp.tanh(x @ layer)
        return jnp.mean(x**2), {}

    def plain_step(self, params: Any, state: Any, x: Any) -> Any:
        import jax
        import optax

        gradient = jax.grad(lambda p: self.loss(p, x, None)[0])(params)
        updates, state = self.optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    def take_plain_steps(self, steps: int) -> None:
        for _ in range(steps):
            self._inputs[:2] = self.plain(*self._inputs)

    def fit(self, steps: int, folder: Path, turns: Turns) -> Any:
        """Trains with a release in each period, and returns the compiled step."""
        from bevel.batch_selection import PaddedSizes
        from bevel.execution_plan import DPSGDConfig
        from bevel.training import RunOptions, Trainer, progress
        from bevel.training.compiled_steps import CompiledSteps

        programs, of_size = [], CompiledSteps.of_size

        def kept(self: CompiledSteps, size: int) -> Any:
            programs.append(of_size(self, size))
            return programs[-1]

        CompiledSteps.of_size = kept  # type: ignore[method-assign]
        # In every process, and not only in the first, which alone gets a `Progress` of its own.
        progress.Progress.advance = lambda _, step: turns.advance(step)  # type: ignore[method-assign]
        config = DPSGDConfig.default(
            num_examples=len(self.data),
            expected_batch_size=0.8 * self.rows,  # so that all batches are padded to `rows`
            iterations=steps,
            noise_multiplier=1.0,
        )
        trainer = Trainer(
            config=config,
            loss_fn=self.loss,
            optimizer=self.optimizer,
            mesh=self.mesh,
            compilation_strategy=PaddedSizes((self.rows,), DEVICES),
        )
        trainer.fit(
            self.data,
            self.params,
            folder=folder,
            callback=lambda state, metrics: False,  # so that a release ends within its turn
            options=RunOptions(
                checkpoint_every=turns.period, progress=False, tensorboard=False, delta=1e-6
            ),
        )
        return programs[0]


def work(folder: Path, layout: str, options: argparse.Namespace) -> None:
    """The program of each process of a layout."""
    from bevel.processes import join

    joined = join()
    from bevel.inspection import inspect_step

    jobs = Jobs(options.width, options.layers, options.rows)
    turns = Turns(folder, layout, options.steps, jobs.take_plain_steps)
    steps = (options.rounds + 1) * turns.period + 1
    program = jobs.fit(steps, folder / f"run {layout}", turns)
    if joined.index == 0:
        sums = {}
        for name, compiled in (("plain", jobs.plain), ("steps", program)):
            totals = inspect_step(compiled).totals.values()
            sums[name] = [sum(t.count for t in totals), sum(t.bytes for t in totals)]
        (folder / f"{layout}.program").write_text(json.dumps(sums))


# The parent, which starts all layouts and gives them their turns.


class Layout:
    """The processes of one layout, started together."""

    def __init__(self, folder: Path, name: str, arguments: list[str]) -> None:
        from bevel.processes import launch

        self.folder, self.name, self.turn = folder, name, 0
        processes, devices = LAYOUTS[name]
        command = [sys.executable, __file__, "--work", str(folder), "--layout", name, *arguments]
        self.log = (folder / f"{name}.log").open("w+")
        self.codes: list[int] = []

        def run() -> None:
            self.codes.append(launch(command, processes, devices, output=self.log))

        begun = time.perf_counter()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        self.result()
        self.start_up = time.perf_counter() - begun

    def result(self) -> dict[str, Any]:
        """Waits until the current turn is over."""
        path = self.folder / f"{self.name}.{self.turn}.done"
        while not path.exists():
            if self.codes:
                raise RuntimeError(
                    f"{self.name} failed:\n{Path(self.log.name).read_text()[-4000:]}"
                )
            time.sleep(POLL)
        return json.loads(path.read_text())

    def failure(self) -> RuntimeError:
        return RuntimeError(f"{self.name} failed:\n{Path(self.log.name).read_text()[-4000:]}")

    def take_turn(self) -> dict[str, Any]:
        (self.folder / f"{self.name}.{self.turn}.go").touch()
        self.turn += 1
        return self.result()

    def finish(self) -> dict[str, list[int]]:
        """Lets the processes run to their end. Returns what a step sends between devices."""
        for turn in range(self.turn, self.turn + 2 * len(KINDS)):
            (self.folder / f"{self.name}.{turn}.go").touch()
        self.thread.join()
        if self.codes != [0]:
            raise self.failure()
        return json.loads((self.folder / f"{self.name}.program").read_text())


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each layout."""
    arguments = [f"--{name}={getattr(options, name)}" for name in SIZES]
    with tempfile.TemporaryDirectory() as root:
        layouts = [Layout(Path(root), name, arguments) for name in LAYOUTS]
        found: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
        for _ in range(options.rounds):
            for kind in KINDS:
                for layout in layouts:
                    found[layout.name, kind].append(layout.take_turn())
        sent = [layout.finish() for layout in layouts]
    rows = []
    for layout, programs in zip(layouts, sent, strict=True):
        turns = {kind: found[layout.name, kind] for kind in KINDS}
        base = {kind: found["1 x 4", kind] for kind in KINDS}
        row: dict[str, Any] = {"layout": layout.name, "start_up": layout.start_up, "sent": programs}
        for kind in ("plain", "steps"):
            times = [turn["seconds"] / options.steps for turn in turns[kind]]
            pairs = zip(turns[kind], base[kind], strict=True)
            row[kind] = statistics.median(times)
            row[f"{kind}_ratio"] = statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)
        pairs = zip(turns["release"], turns["steps"], strict=True)
        row["release"] = statistics.median(
            r["seconds"] - 2 * s["seconds"] / options.steps for r, s in pairs
        )
        row["in_steps"] = sum(len(c) for t in turns["steps"] for c in t["collectives"].values())
        row["in_releases"] = {
            whose: [
                statistics.median(len(turn["collectives"][whose]) for turn in turns["release"]),
                statistics.median(sum(turn["collectives"][whose]) for turn in turns["release"]),
            ]
            for whose in ("bevel", "Orbax")
        }
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, default=Path("build/processes.json"))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--layout", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.layout, options)
        return
    rows = measure(options)
    heads = ["processes x devices", "plain JAX", "ratio", "bevel", "ratio", "a release", "start"]
    heads += ["host collectives in steps", "of bevel in a release", "of Orbax in a release"]
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row in rows:
        cells = [row["layout"], f"{1e3 * row['plain']:.0f} ms", f"{row['plain_ratio']:.2f}"]
        cells += [f"{1e3 * row['steps']:.0f} ms", f"{row['steps_ratio']:.2f}"]
        cells += [f"{1e3 * row['release']:.0f} ms", f"{row['start_up']:.0f} s"]
        cells += [str(row["in_steps"])]
        for count, seconds in row["in_releases"].values():
            cells.append(f"{count:.0f}, {1e3 * seconds:.0f} ms")
        print("| " + " | ".join(cells) + " |")
    for name, title in (("plain", "plain JAX"), ("steps", "bevel")):
        count, size = rows[-1]["sent"][name]
        print(f"{title}: {count} collectives of a step between devices, {size / 1e6:.2f} MB")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    import jax

    import bevel

    print(
        f"\n{platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"jax {jax.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
