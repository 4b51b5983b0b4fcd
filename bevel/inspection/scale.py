"""Predict how a step scales to thousands of devices: the step is compiled but never run.

def build_step(mesh, batch_size, *, width):
    ...
    return PlacedStep(step, {"params": params, "optimizer": state, "batch": batch})

print(scale(build_step, axes="data=-1", batch_size=64, spec={"width": 512}))
"""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bevel.checks import in_one_line, shown
from bevel.errors import FixArgumentsError
from bevel.inspection import scale_report
from bevel.inspection.scale_report import ScaleReport, ScaleRow, Speeds, failed_row
from bevel.inspection.scale_worker import MARK, PlacedStep
from bevel.sharding.mesh import Axes, axis_sizes, pairs_of

__all__ = ["PlacedStep", "ScaleReport", "Speeds", "scale"]

LARGEST = 512  # devices that a step is compiled for by default


def scale(
    build_step: Callable[..., PlacedStep] | str,
    *,
    axes: Axes,
    batch_size: int,
    devices: Sequence[int] = (8, 64, 512, 4096),
    spec: Mapping[str, Any] | None = None,
    speeds: Speeds | None = None,
    compile_up_to: int = LARGEST,
    timeout: float = 600.0,
    on_compile: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> ScaleReport:
    """Predicts weak and strong scaling of a step: what each device holds, computes and sends.

    For each number of devices, a separate process compiles the step for that many virtual CPU
    devices. Nothing is run, so no memory or data for the arrays is needed. Numbers above
    `compile_up_to` are extrapolated from at least three compiled ones, and are marked.

    Args:
      build_step: `build_step(mesh, batch_size, **spec)` returns a `PlacedStep`. It is called in
        other processes, so it must be a function at the top level of a module, or be given as
        "module:function" or "file.py:function".
      axes: the mesh, as for `bevel.sharding.make_mesh`: "data=-1,model=8". One axis must have
        size -1; it uses the devices that the others leave.
      batch_size: examples in a step on the fewest devices. Weak scaling increases it in proportion
        to the devices.
      devices: the numbers of devices to try.
      spec: further keyword arguments of `build_step`. They must be JSON-serialisable.
      speeds: the speeds of a device, to estimate times.
      compile_up_to: the largest number of devices to compile for.
      timeout: seconds to compile for one number of devices.
      on_compile: surrounds each compilation, with what is compiled: to show progress.

    An all-reduce of which each device uses only its slice counts as a reduce-scatter. Operations in
    a loop count as often as the loop runs. The notes name arrays that the compiler can move only by
    gathering all of them (involuntary full rematerialisation).
    """
    sizes = sorted(set(devices))
    axis = _check(sizes, axes, batch_size)
    if not isinstance(build_step, str):
        build_step = target_of(build_step)
    target = parse_target(build_step)
    if "file" in target and not Path(target["file"]).is_file():
        raise FixArgumentsError(
            f"{build_step!r} names a file that does not exist: write 'file.py:function' with an "
            "existing file, or 'module:function'."
        )
    counts = compiled_counts(sizes, sizes[0] // axis_sizes(axes, sizes[0])[axis], compile_up_to)
    rows, notes = list[ScaleRow](), list[str]()
    for n in counts:
        mesh = axis_sizes(axes, n)
        batches = {"weak": batch_size * n // counts[0], "strong": batch_size}
        request = {
            "build": target,
            "axes": mesh,
            "devices": n,
            "batches": sorted(set(batches.values())),
            "spec": dict(spec or {}),
        }
        with on_compile(f"compiling for {n} devices ({counts.index(n) + 1} of {len(counts)})"):
            figures, log = run_worker(request, timeout)
        rows += [_row_of(s, n, mesh, b, figures[str(b)]) for s, b in batches.items()]
        notes += notes_of(n, figures, log)
    if all(row.error for row in rows):
        raise FixArgumentsError(
            f"build_step failed on all of {counts} devices. On {rows[0].devices} devices with "
            f"batch size {rows[0].batch}: {in_one_line(rows[0].error)}"
        )
    for n in (n for n in sizes if n > compile_up_to):
        for scaling in ("weak", "strong"):
            batch = batch_size * n // counts[0] if scaling == "weak" else batch_size
            rows.append(_extrapolate(rows, scaling, n, axis, axis_sizes(axes, n), batch, notes))
    notes += [
        f"{row.scaling} scaling, {row.devices} devices, batch {row.batch} does not fit: {row.error}"
        for row in rows
        if row.error
    ]
    return ScaleReport(rows, speeds or Speeds(), notes)


def _check(devices: list[int], axes: Axes, batch_size: int) -> str:
    """Validates the arguments, and returns the axis of size -1."""
    free = [axis for axis, size in pairs_of(axes) if size == -1]
    if len(free) != 1:
        raise FixArgumentsError(
            f"axes={shown(axes)}: give exactly one axis the size -1, which uses the devices that "
            "the others leave, as in 'data=-1,model=4'."
        )
    if not devices or devices[0] < 1 or batch_size < 1:
        raise FixArgumentsError(
            f"devices={devices}, batch_size={batch_size}: both must be positive."
        )
    for n in devices:
        axis_sizes(axes, n)
    return free[0]


def compiled_counts(sizes: list[int], unit: int, largest: int) -> list[int]:
    """The numbers of devices to compile for: at least three if some must be extrapolated.

    Those of `sizes` up to `largest` are included. Added ones are multiples of `unit`.
    """
    counts = [n for n in sizes if n <= largest]
    extra = largest
    while len(counts) < 3 and sizes[-1] > largest and extra >= 2 * unit:
        if extra % unit == 0 and extra not in counts:
            counts.append(extra)
        extra //= 4
    if sizes[-1] > largest and len(counts) < 3:
        raise FixArgumentsError(
            f"extrapolating to {sizes[-1]} devices needs at least three smaller numbers, but only "
            f"{sorted(counts)} can be compiled: raise compile_up_to={largest}."
        )
    return sorted(counts)


def target_of(build: Callable[..., Any]) -> str:
    """Names a function as `module:function` or `file.py:function`."""
    name = getattr(build, "__qualname__", "<lambda>")
    if "<" in name:
        raise FixArgumentsError(
            f"build_step is {name}, which another process cannot import: define it at the top "
            "level of a module, and pass what varies as spec=."
        )
    module = inspect.getmodule(build)
    if module is None or not module.__package__:
        return f"{inspect.getsourcefile(build)}:{name}"
    return f"{module.__name__}:{name}"


def parse_target(build: str) -> dict[str, str]:
    source, _, name = build.rpartition(":")
    if not source or not name:
        raise FixArgumentsError(
            f"build_step={shown(build)}: write 'module:function' or 'file.py:function'."
        )
    return {"file" if source.endswith(".py") else "module": source, "name": name}


def run_worker(request: dict[str, Any], timeout: float) -> tuple[dict[str, Any], str]:
    """Runs `scale_worker` in a new process. Returns its figures and the compiler's log."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings of the partitioner
    }
    # The worker sets the number of devices. Programs that never run need no optimised code.
    flags = re.sub(
        r"--xla_force_host_platform_device_count=\d+", "", environment.get("XLA_FLAGS", "")
    )
    environment["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0".strip()
    command = [sys.executable, "-c", "from bevel.inspection.scale_worker import main; main()"]
    try:
        run = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise FixArgumentsError(
            f"compiling for {request['devices']} devices took more than {timeout} s: use a "
            "smaller model or a larger timeout."
        ) from error
    answers = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = in_one_line(run.stderr.strip().rpartition("\n")[2], 300)
        _, found, message = last.partition(f"{FixArgumentsError.__name__}: ")
        raise FixArgumentsError(
            message
            if found
            else f"the process that compiles for {request['devices']} devices failed with status "
            f"{run.returncode}: {last}"
        )
    return json.loads(answers[0].removeprefix(MARK)), run.stderr


def _row_of(
    scaling: str, n: int, mesh: dict[str, int], batch: int, figures: dict[str, Any]
) -> ScaleRow:
    if "error" in figures:
        return failed_row(scaling, n, mesh, batch, figures["error"])
    names = ("held", "activations", "peak", "flops", "traffic", "collectives")
    return ScaleRow(scaling, n, mesh, batch, False, *(figures[name] for name in names))


def _extrapolate(
    rows: Sequence[ScaleRow],
    scaling: str,
    n: int,
    axis: str,
    mesh: dict[str, int],
    batch: int,
    notes: list[str],
) -> ScaleRow:
    """Extrapolates one row, and adds to `notes` how well the compiled rows fit."""
    known = [r for r in rows if r.scaling == scaling and not r.error and not r.extrapolated]
    if len(known) < 3:
        return failed_row(scaling, n, mesh, batch, "fewer than three compiled rows to extrapolate")
    split = known[-1].held["batch"] / known[-1].batch < known[0].held["batch"] / known[0].batch
    if split and batch < mesh[axis]:
        return failed_row(scaling, n, mesh, batch, f"{axis} has size {mesh[axis]}")
    counts = [r.mesh[axis] for r in known]
    figures = [[sum(r.sent().values()) for r in known]]
    figures += [[getattr(r, name) for r in known] for name in ("flops", "traffic", "activations")]
    error = max(scale_report.fit(counts, values)[1] for values in figures)
    notes.append(
        f"{scaling} scaling on {n} devices is extrapolated from {[r.devices for r in known]}. The "
        f"error of the fit is at most {100 * error:.1f}% of what these send, compute and hold."
    )
    return scale_report.extrapolated_row(known, axis, n, mesh, batch)


REMATERIALISED = re.compile(
    r"Involuntary full rematerialization.*?from sharding (.*?) to (\{.*?\}) .*?"
    r"HLO operation:? %?([\w.\-]+) = (\S+).*?(?:op_name=\"([^\"]*)\"|$)"
)


def notes_of(n: int, figures: dict[str, Any], log: str) -> list[str]:
    """Notes on one number of devices: what was not counted, and warnings of the compiler."""
    notes = []
    for batch, row in figures.items():
        if row.get("unknown_loops"):
            notes.append(
                f"{n} devices, batch {batch}: {row['unknown_loops']} collectives are in loops of "
                "unknown length, each counted once."
            )
        if row.get("unread_products"):
            names = ", ".join(row["unread_products"])
            notes.append(f"{n} devices, batch {batch}: FLOPs of {names} are not counted.")
    lines = [line for line in log.splitlines() if "Involuntary full rematerialization" in line]
    moves = {}
    for line in lines:
        match = REMATERIALISED.search(line)
        if match:
            before, after, _, shape, operation = match.groups()
            moves[operation or shape] = f"{shape} from {before} to {after}"
    if lines:
        text = "; ".join(f"{name}: {move}" for name, move in list(moves.items())[:5])
        notes.append(
            f"{n} devices: involuntary full rematerialisation, {len(lines)} times (all of an array "
            f"is gathered to change its sharding): {text or lines[0][:200]}"
        )
    return notes
