"""What clipping costs: `bevel.clipped_grad` beside `jax.grad` and per-example `vmap(grad)`.

    python benchmarks/clipping.py                 # small sizes, for a CPU
    python benchmarks/clipping.py --size full --cases mlp,gpt_loop_32 --dtype bfloat16

One process per case and dtype, so that one that runs out of memory costs its own row only. Within
it, every column is compiled first and then steps are timed in rounds, column after column, so that
drift hits all alike; the median is reported. Memory is the compiler's (`memory_analysis`):
arguments + outputs + temporaries - aliases. FLOPs are the compiler's too, which counts the body of
a loop once. `compile` is lowering and compiling, without `trace`. Ratios are to `jax.grad`.
A column that fails says why in its row. The note on bevel is how long its result is beside that of
naive, and how far they are apart at equal length. Shorter is deliberate: the slack that keeps each
contribution below the clip norm in spite of rounding.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import math
import os
import platform
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models

import bevel

CLIP_NORM = 1.0
TOLERANCE = {"float32": 2e-3, "bfloat16": 1e-2}  # of the difference at equal length
MOST_SLACK = {"float32": 2e-2, "bfloat16": 6e-2}
# In this order: what may fail to compile comes last, so that a restart without it repeats little.
COLUMNS = ("grad", "bevel", "naive", "jax_privacy", "opacus")
MICROBATCHES = (1, 4, 16)  # pieces that JAX Privacy's batch is cut into; the fastest is reported
TINY_STEP = 0.01  # seconds; shorter steps are timed several back to back


def naive(case: models.Case) -> Callable[..., Any]:
    """Per-example gradients by vmap, clipped and summed in float32."""

    def one(params: Any, example: Any, *frozen: Any) -> Any:
        return jax.grad(case.loss)(params, jax.tree.map(lambda x: x[None], example), *frozen)

    def weighted_sum(weights: jax.Array, g: jax.Array) -> jax.Array:
        if jax.default_backend() == "cpu":  # where the product is the faster of the two
            return jnp.tensordot(weights, g, 1) / case.batch_size
        return jnp.sum(jax.vmap(jnp.multiply)(weights, g), axis=0) / case.batch_size

    def step(params: Any, batch: Any, *frozen: Any) -> Any:
        axes = (None, 0, *(None for _ in frozen))
        grads = jax.vmap(one, in_axes=axes)(params, batch, *frozen)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        squares = [jnp.sum(g * g, axis=tuple(range(1, g.ndim))) for g in jax.tree.leaves(grads)]
        weights = jnp.minimum(1.0, CLIP_NORM / jnp.sqrt(sum(squares)))
        return jax.tree.map(lambda g: weighted_sum(weights, g), grads)

    return step


def column_function(column: str, case: models.Case) -> Callable[..., Any]:
    """The step of a column: a function of (params, batch, *frozen)."""
    if column == "grad":
        return jax.grad(case.loss)
    if column == "naive":
        return naive(case)
    clip = {"l2_clip_norm": CLIP_NORM, "normalize_by": case.batch_size}
    if column == "bevel":
        return bevel.clipped_grad(case.loss, **clip)
    import jax_privacy

    pieces = int(column.removeprefix("jax_privacy/"))
    microbatch = None if pieces == 1 else max(1, case.batch_size // pieces)
    return jax_privacy.clipped_grad(case.loss, **clip, microbatch_size=microbatch)


def check_that_it_fits(case: models.Case) -> None:
    stats = jax.devices()[0].memory_stats() or {}
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 4 * case.batch_size * sum(x.size for x in jax.tree.leaves(case.params))
    if needed > stats.get("bytes_limit", host):
        raise MemoryError(f"does not fit: {in_bytes(needed)} of per-example gradients")


# One case, in its own process: facts go to the parent as lines of JSON.


def tell(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


@contextlib.contextmanager
def blame(column: str, stage: str) -> Iterator[None]:
    """An error inside becomes the column's cell."""
    tell(begin=column, stage=stage)
    try:
        yield
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            text = f"out of memory ({stage})"
        tell(column=column, failed=text.removeprefix("MemoryError: ")[:160])


def compile_column(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, dict]:
    jax.clear_caches()  # nothing that an earlier column traced may serve this one
    start = time.perf_counter()
    traced = jax.jit(function).trace(*arguments)
    middle = time.perf_counter()
    compiled = traced.lower().compile()
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return compiled, {
        "trace_s": middle - start,
        "compile_s": end - middle,
        "memory_bytes": held + memory.temp_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "flops": (compiled.cost_analysis() or {}).get("flops"),
    }


def seconds_per_call(program: Any, arguments: tuple[Any, ...], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        result = program(*arguments)
        if jax.default_backend() == "cpu":  # where calls in flight would share the cores
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def length(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


@jax.jit
def compared(tree: Any, truth: Any) -> tuple[jax.Array, jax.Array]:
    """The ratio of the lengths of two results, and their relative difference at equal length."""
    ratio = length(tree) / length(truth)
    apart = jax.tree.map(lambda x, y: x / ratio - y, tree, truth)
    return ratio, length(apart) / length(truth)


def difference_from_naive(programs: dict[str, Any], case: models.Case, dtype: str) -> dict:
    """At this size where naive runs, else at the small size."""
    size = ""
    if "naive" not in programs:
        case, size = models.make(case.name, "small", dtype), " (small size)"
        programs = {c: jax.jit(column_function(c, case)) for c in ("naive", "bevel")}
    results = (programs[c](*case.arguments) for c in ("bevel", "naive"))
    ratio, apart = map(float, compared(*results))
    note = f"{ratio:.4f} of naive{size}, {apart:.1e} apart"
    return {"length": ratio, "difference": apart, "note": note}


def measure(name: str, dtype: str, columns: list[str], size: str, steps: int, **rest: Any) -> None:
    device = jax.devices()[0]
    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    tell(machine=cpu if device.platform == "cpu" else device.device_kind)
    case = models.make(name, size, dtype)
    # The first trace in a process pays for imports: not the first column's cost.
    jax.jit(jax.grad(case.loss)).trace(*case.arguments)
    programs: dict[str, Any] = {}
    calls: dict[str, int] = {}
    for column in columns:
        with blame(column, "compile"):
            if column == "naive" and not rest["try_naive"]:
                check_that_it_fits(case)
            program, numbers = compile_column(column_function(column, case), case.arguments)
            tell(column=column, **numbers)
            programs[column] = program
    for column, program in programs.items():
        with blame(column, "run"):
            seconds_per_call(program, case.arguments)
            once = seconds_per_call(program, case.arguments)
            calls[column] = min(50, math.ceil(TINY_STEP / once))
    if "bevel" in calls:
        with blame("bevel", "comparison with naive"):
            runs = {column: programs[column] for column in calls}
            tell(column="bevel", **difference_from_naive(runs, case, dtype))
    times: dict[str, list[float]] = {column: [] for column in calls}
    for _ in range(steps):
        for column, count in calls.items():
            tell(begin=column, stage="time")
            times[column].append(seconds_per_call(programs[column], case.arguments, count))
    for column, seconds in times.items():
        low, median, high = statistics.quantiles(seconds, n=4)
        tell(column=column, ms=1e3 * median, quartiles_ms=[1e3 * low, 1e3 * high], steps=steps)


# The parent: starts a process per case, listens, and prints.


def run_case(name: str, dtype: str, options: argparse.Namespace, report: dict) -> dict:
    """The row of one case. A column that kills its process is left out of the next attempt."""
    found: dict[str, dict] = {}
    pending = list(options.columns)
    while pending:
        task = {**vars(options), "name": name, "dtype": dtype, "columns": pending}
        blamed, why = run_process(task, found, report)
        for column in pending if blamed is None else [blamed]:
            if why and "ms" not in found.setdefault(column, {}):
                found[column].setdefault("failed", why)
        ended = {c for c in found if "ms" in found[c] or "failed" in found[c]}
        pending = [c for c in pending if c not in ended] if blamed else []
    return {"case": name, "dtype": dtype, "columns": found}


def run_process(task: dict, found: dict, report: dict) -> tuple[str | None, str | None]:
    """Run one process and note what it tells. Gives who is to blame, if one column is, and why."""
    command = [sys.executable, __file__, "--measure", json.dumps(task, default=str)]
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92", **os.environ}
    column, column_ends = None, math.inf
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        # Unbuffered, so that `select` sees every line that has not been read.
        Popen(command, stdout=PIPE, stderr=errors, bufsize=0, env=environment) as process,
    ):
        while True:
            left = min(column_ends, task["deadline"]) - time.monotonic()
            if not select.select([process.stdout], [], [], min(max(left, 0.0), 1e6))[0]:
                process.kill()
                if task["deadline"] <= column_ends:
                    return None, "out of time"
                return column, f"compiles for more than {task['compile_limit']:g} s"
            line = process.stdout.readline()
            if not line:
                break
            fact = json.loads(line) if line.startswith(b"{") else {}
            if "machine" in fact:
                report.update(fact)
            elif "begin" in fact:
                column, limited = fact["begin"], fact["stage"] == "compile"
                column_ends = time.monotonic() + task["compile_limit"] if limited else math.inf
            elif fact:
                found.setdefault(fact.pop("column"), {}).update(fact)
        if process.wait() == 0:
            return None, None
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1][:120].replace("|", "/")
        return column, f"process ended with {process.returncode}: {last}"


def in_bytes(size: float) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"


MEASURES = {
    "step": ("ms", "{:.4g} ms".format),
    "memory": ("memory_bytes", in_bytes),
    "compile": ("compile_s", "{:.1f} s".format),
    "trace": ("trace_s", "{:.2f} s".format),
    "FLOPs": ("flops", "{:.3g}".format),
}


def table_lines(row: dict) -> list[str]:
    found = row["columns"]
    plain = found.get("grad", {})
    # Of JAX Privacy's microbatch sizes, the fastest.
    peers = [c for c in found if c.startswith("jax_privacy")]
    peers.sort(key=lambda c: found[c].get("ms", math.inf))
    lines = []
    for column in [c for c in found if c not in peers] + peers[:1]:
        numbers = found[column]
        cells = [f"{row['case']} {row['dtype']}", column]
        for key, show in MEASURES.values():
            value, base = numbers.get(key), plain.get(key)
            cells.append(show(value) if value else "")
            cells.append(f"{value / base:.2f}x" if value and base else "")
        cells.append("; ".join(numbers[key] for key in ("failed", "note") if key in numbers))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def went_wrong(row: dict) -> bool:
    ours, tolerance = row["columns"].get("bevel", {}), TOLERANCE[row["dtype"]]
    close = ours.get("difference", 0.0) <= tolerance
    as_long = 1 - MOST_SLACK[row["dtype"]] <= ours.get("length", 1.0) <= 1 + tolerance
    return "failed" in ours or not (close and as_long)


def parse() -> argparse.Namespace:
    names = functools.partial(str.split, sep=",")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--size", choices=("full", "small"), default="small")
    add("--cases", type=names, help=",".join(models.CASES))
    add("--dtype", choices=(*TOLERANCE, "both"), help="small: float32; full: both")
    add("--columns", type=names, default=list(COLUMNS), help=",".join(COLUMNS))
    add("--steps", type=int, help="timed rounds, at least 10; small: 10; full: 20")
    add("--json", type=Path, default=Path("build/clipping.json"))
    add("--compile-limit", type=float, default=240, help="seconds for one column")
    add("--seconds", type=float, default=math.inf, help="for the whole run")
    add("--try-naive", action="store_true", help="even where it is not expected to fit")
    add("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cases = options.cases or list(models.TABLES[options.size])
    unknown = {*options.cases, *options.columns} - {*models.CASES, *COLUMNS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))} (see --help)")
    return options


def installed(columns: list[str]) -> list[str]:
    """The columns that can be measured here, in the order of COLUMNS; says why others cannot."""
    wanted = [c for c in COLUMNS if c in columns and c not in ("jax_privacy", "opacus")]
    if "jax_privacy" in columns and importlib.util.find_spec("jax_privacy"):
        wanted += [f"jax_privacy/{pieces}" for pieces in MICROBATCHES]
    elif "jax_privacy" in columns:
        print("jax_privacy: not installed", flush=True)
    if "opacus" in columns:
        print("opacus: left out, since its ratio is to another framework's step (eager PyTorch)")
    return wanted


def main() -> int:
    options = parse()
    if options.measure:
        measure(**options.measure)
        return 0
    options.steps = max(options.steps or (10 if options.size == "small" else 20), 10)
    options.columns = installed(options.columns)
    options.deadline = time.monotonic() + options.seconds
    options.json.parent.mkdir(parents=True, exist_ok=True)
    dtype = options.dtype or ("float32" if options.size == "small" else "both")
    date, versions = str(datetime.date.today()), f"jax {jax.__version__}, bevel {bevel.__version__}"
    report: dict[str, Any] = {"date": date, "versions": versions, "size": options.size, "rows": []}
    heads = ["case", "column", *(head for m in MEASURES for head in (m, "ratio")), "note"]
    print("\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads), flush=True)
    for name in options.cases:
        for one in TOLERANCE if dtype == "both" else (dtype,):
            row = run_case(name, one, options, report)
            report["rows"].append(row)
            print("\n".join(table_lines(row)), flush=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{report.get('machine')}, {date}, {versions}")
    wrong = [f"{row['case']} {row['dtype']}" for row in report["rows"] if went_wrong(row)]
    if wrong:
        print(f"bevel failed or is not what naive gives in: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
