"""Measures the cost of `bevel.clipped_grad` relative to `jax.grad` and per-example `vmap(grad)`.

    python benchmarks/clipping.py                 # small sizes, for a CPU
    python benchmarks/clipping.py --size full --cases mlp,gpt_loop_32 --dtype bfloat16 --json A.json
    python benchmarks/clipping.py --merge A.json B.json    # the table of the README

Each case and dtype has its own process, so that running out of memory affects only its own row. The
process compiles every column first and then times steps in rounds, column after column, so that
drift affects all columns equally; the median is reported. Memory is the compiler's
(`memory_analysis`): arguments + outputs + temporaries - aliases. FLOPs are the compiler's too,
which counts the body of a loop once. `compile` is lowering and compiling, without `trace`. Ratios
are relative to `jax.grad`. A column that fails says why in its row. The note on bevel gives the
norm of its result relative to that of naive, and their difference at equal norm. The norm is
smaller on purpose: the slack keeps each contribution below the clip norm despite rounding.
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

import cost_table
import models
import training_steps

import bevel

CLIP_NORM = 1.0
TOLERANCE = {"float32": 2e-3, "bfloat16": 1e-2}  # of the difference at equal norm
MOST_SLACK = {"float32": 2e-2, "bfloat16": 6e-2}
# Columns that may fail to compile come last, so that a restart without them repeats little.
COLUMNS = ("grad", "bevel", "step", "private_step", "naive", "jax_privacy", "opacus")
# Modes of memory other than the default, for rows with remat. They run only if you name them.
MODES = tuple(f"bevel/{mode}" for mode in ("microbatches", "boundaries", "low", "bookkeeping"))
MICROBATCHES = (1, 4, 16)  # microbatches tried for JAX Privacy; the fastest is reported
TINY_STEP = 0.01  # seconds; shorter steps are timed several at a time


def naive(case: models.Case) -> Callable[..., Any]:
    """Per-example gradients with vmap, clipped and summed in float32."""

    def one(params: Any, example: Any, *frozen: Any) -> Any:
        return jax.grad(case.loss)(params, jax.tree.map(lambda x: x[None], example), *frozen)

    def weighted_sum(weights: jax.Array, g: jax.Array) -> jax.Array:
        if jax.default_backend() == "cpu":  # where the product is faster
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
    """The function of a column, which takes (params, batch, *frozen)."""
    if column in ("grad", "step"):
        return jax.grad(case.loss)
    if column == "naive":
        return naive(case)
    clip = {"l2_clip_norm": CLIP_NORM, "normalize_by": case.batch_size}
    name, *mode = column.split("/")
    if name in ("bevel", "private_step"):
        return bevel.clipped_grad(case.loss, **clip, memory=mode[0] if mode else "auto")
    import jax_privacy

    pieces = int(column.removeprefix("jax_privacy/"))
    microbatch = None if pieces == 1 else max(1, case.batch_size // pieces)
    return jax_privacy.clipped_grad(case.loss, **clip, microbatch_size=microbatch)


def check_memory(case: models.Case) -> None:
    stats = jax.devices()[0].memory_stats() or {}
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 4 * case.batch_size * sum(x.size for x in jax.tree.leaves(case.params))
    if needed > stats.get("bytes_limit", host):
        raise MemoryError(f"does not fit: {in_bytes(needed)} of per-example gradients")


# The process of one case. It reports to its parent in lines of JSON.


def send(**entry: Any) -> None:
    print(json.dumps(entry), flush=True)


@contextlib.contextmanager
def report_failures(column: str, stage: str) -> Iterator[None]:
    """Reports an error inside as the failure of the column."""
    send(begin=column, stage=stage)
    try:
        yield
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            text = f"out of memory ({stage})"
        send(column=column, failed=text.removeprefix("MemoryError: ")[:160])


def compile_column(column: str, case: models.Case) -> tuple[Any, dict]:
    jax.clear_caches()  # so that this column does not reuse what earlier ones traced
    function, arguments = column_function(column, case), case.arguments
    whole = None
    if column in ("step", "private_step"):
        noise = training_steps.NOISE_MULTIPLIER * CLIP_NORM / case.batch_size
        stddev = noise if column == "private_step" else None
        whole = training_steps.TrainingStep(function, case.params, stddev)
        function, arguments = whole.step, (whole.state, *arguments[1:])
    start = time.perf_counter()
    traced = jax.jit(function, donate_argnums=() if whole is None else 0).trace(*arguments)
    middle = time.perf_counter()
    compiled = traced.lower().compile()
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    if whole is not None:
        whole.compiled = compiled
    return whole or compiled, {
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
        if jax.default_backend() == "cpu":  # where concurrent calls would share the cores
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


@jax.jit
def compare(tree: Any, truth: Any) -> tuple[jax.Array, jax.Array]:
    """The ratio of the norms of two results, and their relative difference at equal norm."""
    ratio = norm(tree) / norm(truth)
    difference = jax.tree.map(lambda x, y: x / ratio - y, tree, truth)
    return ratio, norm(difference) / norm(truth)


def difference_from_naive(programs: dict[str, Any], case: models.Case, dtype: str) -> dict:
    """Compares bevel with naive, at the small size if naive does not run at this one."""
    size = ""
    if "naive" not in programs:
        case, size = models.make(case.name, "small", dtype), " (small size)"
        programs = {c: jax.jit(column_function(c, case)) for c in ("naive", "bevel")}
    results = (programs[c](*case.arguments) for c in ("bevel", "naive"))
    ratio, difference = map(float, compare(*results))
    note = f"norm {ratio:.4f} of naive{size}, difference {difference:.1e}"
    return {"length": ratio, "difference": difference, "note": note}


def measure(name: str, dtype: str, columns: list[str], size: str, steps: int, **rest: Any) -> None:
    device = jax.devices()[0]
    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    send(machine=cpu if device.platform == "cpu" else device.device_kind)
    case = models.make(name, size, dtype)
    # The first trace in a process includes imports, which no column should pay for.
    jax.jit(jax.grad(case.loss)).trace(*case.arguments)
    programs: dict[str, Any] = {}
    calls: dict[str, int] = {}
    for column in columns:
        with report_failures(column, "compile"):
            if column == "naive" and not rest["try_naive"]:
                check_memory(case)
            program, numbers = compile_column(column, case)
            send(column=column, **numbers)
            programs[column] = program
    for column, program in programs.items():
        with report_failures(column, "run"):
            seconds_per_call(program, case.arguments)
            seconds = seconds_per_call(program, case.arguments)
            calls[column] = min(50, math.ceil(TINY_STEP / seconds))
    if "bevel" in calls:
        with report_failures("bevel", "comparison with naive"):
            runs = {column: programs[column] for column in calls}
            send(column="bevel", **difference_from_naive(runs, case, dtype))
    times: dict[str, list[float]] = {column: [] for column in calls}
    for _ in range(steps):
        for column, count in calls.items():
            send(begin=column, stage="time")
            times[column].append(seconds_per_call(programs[column], case.arguments, count))
    for column, seconds in times.items():
        low, median, high = statistics.quantiles(seconds, n=4)
        send(column=column, ms=1e3 * median, quartiles_ms=[1e3 * low, 1e3 * high], steps=steps)


# The parent process: it starts a process per case and prints the table.


def run_case(name: str, dtype: str, options: argparse.Namespace, report: dict) -> dict:
    """The row of one case. If a column kills its process, the next attempt leaves it out."""
    found: dict[str, dict] = {}
    pending = list(options.columns)
    while pending:
        task = {**vars(options), "name": name, "dtype": dtype, "columns": pending}
        culprit, why = run_process(task, found, report)
        for column in pending if culprit is None else [culprit]:
            if why and "ms" not in found.setdefault(column, {}):
                found[column].setdefault("failed", why)
        ended = {c for c in found if "ms" in found[c] or "failed" in found[c]}
        pending = [c for c in pending if c not in ended] if culprit else []
    return {"case": name, "dtype": dtype, "columns": found}


def run_process(task: dict, found: dict, report: dict) -> tuple[str | None, str | None]:
    """Runs one process and collects its reports. Returns the column that failed, and why."""
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
            entry = json.loads(line) if line.startswith(b"{") else {}
            if "machine" in entry:
                report.update(entry)
            elif "begin" in entry:
                column, limited = entry["begin"], entry["stage"] == "compile"
                column_ends = time.monotonic() + task["compile_limit"] if limited else math.inf
            elif entry:
                found.setdefault(entry.pop("column"), {}).update(entry)
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
    baseline = found.get("grad", {})
    # Only the fastest of JAX Privacy's microbatch sizes is shown.
    peers = [c for c in found if c.startswith("jax_privacy")]
    peers.sort(key=lambda c: found[c].get("ms", math.inf))
    lines = []
    for column in [c for c in found if c not in peers] + peers[:1]:
        numbers = found[column]
        cells = [f"{row['case']} {row['dtype']}", column]
        for key, show in MEASURES.values():
            value, base = numbers.get(key), baseline.get(key)
            cells.append(show(value) if value else "")
            cells.append(f"{value / base:.2f}x" if value and base else "")
        cells.append("; ".join(numbers[key] for key in ("failed", "note") if key in numbers))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def went_wrong(row: dict) -> bool:
    result, tolerance = row["columns"].get("bevel", {}), TOLERANCE[row["dtype"]]
    is_close = result.get("difference", 0.0) <= tolerance
    has_norm = 1 - MOST_SLACK[row["dtype"]] <= result.get("length", 1.0) <= 1 + tolerance
    return "failed" in result or not (is_close and has_norm)


def parse() -> argparse.Namespace:
    names = functools.partial(str.split, sep=",")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--size", choices=("full", "small"), default="small")
    add("--cases", type=names, help=",".join(models.CASES))
    add("--dtype", choices=(*TOLERANCE, "both"), help="small: float32; full: both")
    add("--columns", type=names, default=list(COLUMNS), help=",".join(COLUMNS))
    add("--steps", type=int, help="timed rounds, at least 10; small: 10; full: 20")
    add("--json", "--save", type=Path, default=Path("build/clipping.json"))
    add("--merge", type=Path, nargs="+", metavar="FILE", help="print the table of these results")
    add("--compile-limit", type=float, default=240, help="seconds to compile one column")
    add("--seconds", type=float, default=math.inf, help="time limit of the whole run")
    add("--try-naive", action="store_true", help="run naive even if it is not expected to fit")
    add("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cases = options.cases or list(models.TABLES[options.size])
    unknown = {*options.cases, *options.columns} - {*models.CASES, *COLUMNS, *MODES}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))} (see --help)")
    return options


def installed(columns: list[str]) -> list[str]:
    """The columns that can be measured here, in the order of COLUMNS. Prints why others cannot."""
    known = (*COLUMNS[:2], *MODES, *COLUMNS[2:])
    wanted = [c for c in known if c in columns and c not in ("jax_privacy", "opacus")]
    if "jax_privacy" in columns and importlib.util.find_spec("jax_privacy"):
        wanted += [f"jax_privacy/{pieces}" for pieces in MICROBATCHES]
    elif "jax_privacy" in columns:
        print("jax_privacy: not installed", flush=True)
    if "opacus" in columns:
        print("opacus: left out, because its baseline is a step of eager PyTorch")
    return wanted


def main() -> int:
    options = parse()
    if options.measure:
        measure(**options.measure)
        return 0
    if options.merge:
        print(cost_table.merge_files(options.merge))
        return 0
    options.steps = max(options.steps or (10 if options.size == "small" else 20), 10)
    options.columns = installed(options.columns)
    options.deadline = time.monotonic() + options.seconds
    options.json.parent.mkdir(parents=True, exist_ok=True)
    dtype = options.dtype or ("float32" if options.size == "small" else "both")
    date, versions = str(datetime.date.today()), f"jax {jax.__version__}, bevel {bevel.__version__}"
    about = {"date": date, "versions": versions, "commit": cost_table.commit()}
    report: dict[str, Any] = {**about, "size": options.size, "rows": []}
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
        print(f"bevel failed or differs from naive in: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
