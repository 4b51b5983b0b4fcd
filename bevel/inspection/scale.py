"""A step on thousands of devices, on paper: compiled, never run.

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
from typing import Any

from bevel.errors import FixArgumentsError
from bevel.inspection.scale_report import (
    ScaleReport,
    ScaleRow,
    Speeds,
    extrapolated,
    failed,
    fitted,
)
from bevel.inspection.scale_worker import MARK, PlacedStep
from bevel.sharding.mesh import Axes, axis_sizes, pairs_of

__all__ = ["PlacedStep", "ScaleReport", "Speeds", "scale"]

LARGEST = 512  # devices that a step is compiled for


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
) -> ScaleReport:
    """Weak and strong scaling of a step: what each device holds, computes and sends.

    For every number of devices a process of its own compiles the step for so many virtual CPU
    devices; nothing is run, so neither memory nor data for the arrays is needed. Numbers above
    `compile_up_to` are extrapolated from at least three that were compiled, and say so.

    Args:
      build_step: `build_step(mesh, batch_size, **spec)` gives a `PlacedStep`. It is called in other
        processes: a function at the top of a module, or "module:function", "file.py:function".
      axes: the mesh, as `bevel.sharding.make_mesh` takes it: "data=-1,model=8". One axis has the
        size -1, and takes the devices that the others leave.
      batch_size: examples in a step on the fewest devices; weak scaling grows it with the devices.
      devices: how many to try.
      spec: what else `build_step` takes, as JSON can carry it.
      speeds: of a device, for the estimates of time.
      compile_up_to: the most devices that are compiled for.
      timeout: seconds for one number of devices.

    An all-reduce of which each device keeps its piece only counts as a reduce-scatter; what is in
    a loop counts as often as the loop runs; arrays that the compiler has to gather whole to move
    them (involuntary full rematerialisation) are named in the notes.
    """
    asked = sorted(set(devices))
    axis = _check(asked, axes, batch_size)
    if not isinstance(build_step, str):
        build_step = named(build_step)
    counts = compiled_counts(asked, asked[0] // axis_sizes(axes, asked[0])[axis], compile_up_to)
    rows, notes = list[ScaleRow](), list[str]()
    for n in counts:
        mesh = axis_sizes(axes, n)
        batches = {"weak": batch_size * n // counts[0], "strong": batch_size}
        request = {
            "build": target(build_step),
            "axes": mesh,
            "devices": n,
            "batches": sorted(set(batches.values())),
            "spec": dict(spec or {}),
        }
        found, log = ask(request, timeout)
        rows += [_row_of(s, n, mesh, b, found[str(b)]) for s, b in batches.items()]
        notes += notes_of(n, found, log)
    if all(row.error for row in rows):
        raise FixArgumentsError(
            f"build_step gave no step on any of {counts} devices; on {rows[0].devices} with batch "
            f"{rows[0].batch}: {rows[0].error}"
        )
    for n in (n for n in asked if n > compile_up_to):
        for scaling in ("weak", "strong"):
            batch = batch_size * n // counts[0] if scaling == "weak" else batch_size
            rows.append(_beyond(rows, scaling, n, axis, axis_sizes(axes, n), batch, notes))
    notes += [
        f"{row.scaling} scaling, {row.devices} devices, batch {row.batch} does not fit: {row.error}"
        for row in rows
        if row.error
    ]
    return ScaleReport(rows, speeds or Speeds(), notes)


def _check(devices: list[int], axes: Axes, batch_size: int) -> str:
    """The axis that takes the rest, if everything is as it should be."""
    free = [axis for axis, size in pairs_of(axes) if size == -1]
    if len(free) != 1:
        raise FixArgumentsError(
            f"axes is {axes!r}: give one axis the size -1, which takes the devices that the others "
            "leave, as in 'data=-1,model=4'."
        )
    if not devices or devices[0] < 1 or batch_size < 1:
        raise FixArgumentsError(
            f"devices is {devices} and batch_size is {batch_size}: both must be positive."
        )
    for n in devices:
        axis_sizes(axes, n)
    return free[0]


def compiled_counts(asked: list[int], unit: int, most: int) -> list[int]:
    """What to compile for: what was asked, and enough more multiples of `unit` to extrapolate."""
    counts = [n for n in asked if n <= most]
    extra = most
    while len(counts) < 3 and asked[-1] > most and extra >= 2 * unit:
        if extra % unit == 0 and extra not in counts:
            counts.append(extra)
        extra //= 4
    if asked[-1] > most and len(counts) < 3:
        raise FixArgumentsError(
            f"{asked[-1]} devices are to be extrapolated from at least three smaller numbers, and "
            f"there are only {sorted(counts)}: raise compile_up_to, which is {most}."
        )
    return sorted(counts)


def named(build: Callable[..., Any]) -> str:
    """A function as `module:function` or `file.py:function`."""
    name = getattr(build, "__qualname__", "<lambda>")
    if "<" in name:
        raise FixArgumentsError(
            f"build_step is {name}, which another process cannot find: define it at the top of a "
            "module, and pass what varies through spec=."
        )
    module = inspect.getmodule(build)
    if module is None or not module.__package__:
        return f"{inspect.getsourcefile(build)}:{name}"
    return f"{module.__name__}:{name}"


def target(build: str) -> dict[str, str]:
    where, _, name = build.rpartition(":")
    if not where or not name:
        raise FixArgumentsError(
            f"build_step is {build!r}: write 'module:function' or 'file.py:function'."
        )
    return {"file" if where.endswith(".py") else "module": where, "name": name}


def ask(request: dict[str, Any], timeout: float) -> tuple[dict[str, Any], str]:
    """The worker's answer, and what the compiler logged."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings of the partitioner
    }
    # The number of devices comes with the request. What is never run needs no fast machine code.
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
            f"compiling for {request['devices']} devices took more than {timeout} s: give a "
            "smaller model, or a larger timeout."
        ) from error
    answers = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = "\n".join(run.stderr.splitlines()[-5:])
        raise FixArgumentsError(
            f"the process that compiles for {request['devices']} devices ended with status "
            f"{run.returncode} and no answer. It said: {last}"
        )
    return json.loads(answers[0].removeprefix(MARK)), run.stderr


def _row_of(
    scaling: str, n: int, mesh: dict[str, int], batch: int, found: dict[str, Any]
) -> ScaleRow:
    if "error" in found:
        return failed(scaling, n, mesh, batch, found["error"])
    figures = [found[k] for k in ("held", "activations", "peak", "flops", "traffic", "collectives")]
    return ScaleRow(scaling, n, mesh, batch, False, *figures)


def _beyond(
    rows: Sequence[ScaleRow],
    scaling: str,
    n: int,
    axis: str,
    mesh: dict[str, int],
    batch: int,
    notes: list[str],
) -> ScaleRow:
    """An extrapolated row; how well the compiled ones fit goes into the notes."""
    known = [r for r in rows if r.scaling == scaling and not r.error and not r.extrapolated]
    if len(known) < 3:
        return failed(scaling, n, mesh, batch, "fewer than three compiled rows to extrapolate from")
    split = known[-1].held["batch"] / known[-1].batch < known[0].held["batch"] / known[0].batch
    if split and batch < mesh[axis]:
        return failed(scaling, n, mesh, batch, f"{axis} has {mesh[axis]} places")
    counts = [r.mesh[axis] for r in known]
    figures = [[sum(r.sent().values()) for r in known]]
    figures += [[getattr(r, name) for r in known] for name in ("flops", "traffic", "activations")]
    error = max(fitted(counts, values)[1] for values in figures)
    notes.append(
        f"{scaling} scaling on {n} devices is extrapolated from {[r.devices for r in known]}: the "
        f"fit misses what these send, compute and hold by at most {100 * error:.1f}%."
    )
    return extrapolated(known, axis, n, mesh, batch)


REMATERIALISED = re.compile(
    r"Involuntary full rematerialization.*?from sharding (.*?) to (\{.*?\}) .*?"
    r"HLO operation:? %?([\w.\-]+) = (\S+).*?(?:op_name=\"([^\"]*)\"|$)"
)


def notes_of(n: int, found: dict[str, Any], log: str) -> list[str]:
    """What to know of one number of devices: what was not read, what the compiler warned of."""
    notes = []
    for batch, part in found.items():
        if part.get("unknown_loops"):
            notes.append(
                f"{n} devices, batch {batch}: {part['unknown_loops']} collectives are in loops of "
                "unknown length, each counted once."
            )
        if part.get("unread_products"):
            names = ", ".join(part["unread_products"])
            notes.append(f"{n} devices, batch {batch}: FLOPs of {names} are not counted.")
    lines = [line for line in log.splitlines() if "Involuntary full rematerialization" in line]
    described = {}
    for line in lines:
        seen = REMATERIALISED.search(line)
        if seen:
            before, after, _, shape, operation = seen.groups()
            described[operation or shape] = f"{shape} from {before} to {after}"
    if lines:
        listed = "; ".join(f"{name}: {what}" for name, what in list(described.items())[:5])
        notes.append(
            f"{n} devices: involuntary full rematerialisation, {len(lines)} times (an array is "
            f"gathered whole to be moved): {listed or lines[0][:200]}"
        )
    return notes
