"""The process that compiles a step for so many virtual devices, and never runs it.

The number of devices is fixed when JAX starts, so every number needs a process of its own. The
request (standard input) and the answer are JSON; the compiler's warnings are on the standard error.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

MARK = "bevel.scale: "  # in front of the answer, behind whatever else was printed


@dataclasses.dataclass(frozen=True)
class PlacedStep:
    """A step and the types of its arguments on a mesh.

    Attributes:
      function: takes the values of `arguments`, by position.
      arguments: role to a tree of `jax.ShapeDtypeStruct` with shardings. "params", "optimizer" and
        "noise" are reported under these names and donated, "batch" is not; other roles are donated
        and reported as "other".
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]


ROLES = ("params", "optimizer", "noise", "batch", "other")


def load(build: Mapping[str, str]) -> Callable[..., PlacedStep]:
    """The function named by a module or file."""
    if "file" in build:
        spec = importlib.util.spec_from_file_location("scaled_step", build["file"])
        if spec is None or spec.loader is None:
            raise ValueError(f"{build['file']} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["scaled_step"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(build["module"])
    found: Any = module
    for part in build["name"].split("."):
        found = getattr(found, part)
    return found


def measure(build: Callable[..., Any], mesh: Any, batch: int, spec: dict[str, Any]) -> dict:
    """What one device holds, computes and sends for a batch."""
    import jax

    from bevel.inspection.collectives import inspect_step

    step = build(mesh, batch, **spec)
    roles = list(step.arguments)
    donated = tuple(i for i, role in enumerate(roles) if role != "batch")
    start = time.perf_counter()
    jitted = jax.jit(step.function, donate_argnums=donated)
    compiled = jitted.lower(*step.arguments.values()).compile()
    seconds = time.perf_counter() - start
    report = inspect_step(compiled, mesh)
    held = dict.fromkeys(ROLES, 0)
    for role, tree in step.arguments.items():
        held[role if role in ROLES else "other"] += sum(map(bytes_on_one, jax.tree.leaves(tree)))
    memory = report.memory
    return {
        "held": held,
        "activations": memory.temporaries if memory else 0,
        "peak": memory.peak if memory else 0,
        "flops": report.flops,
        "traffic": report.traffic,
        "collectives": by_kind(report),
        "unknown_loops": report.unknown_loops,
        "unread_products": report.unread_products,
        "compile_seconds": seconds,
    }


def bytes_on_one(leaf: Any) -> int:
    """Bytes of an array on one device."""
    from bevel.inspection.compiled_step import bytes_of

    sharding = getattr(leaf, "sharding", None)
    shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
    return bytes_of(shape, leaf.dtype)


def by_kind(report: Any) -> dict[str, dict[str, float]]:
    """Sums over the collectives of one kind over the same axes: `all-reduce over data`.

    An all-reduce of which each device keeps a piece only is counted as the reduce-scatter that
    other backends make of it.
    """
    found: dict[str, dict[str, float]] = {}

    def add(kind: str, c: Any, size: float) -> None:
        sent = c.times * dataclasses.replace(c, kind=kind, bytes=size).sent
        key = f"{kind} over {'+'.join(c.axes or ())}"
        row = found.setdefault(key, {"count": 0, "bytes": 0.0, "sent": 0.0})
        row["count"] += c.times
        row["bytes"] += c.times * size
        row["sent"] += sent

    for c in report.collectives:
        if c.times and c.group_size > 1:
            if c.sliced_bytes:
                add("reduce-scatter", c, c.sliced_bytes)
            if c.bytes > c.sliced_bytes:
                add(c.kind, c, c.bytes - c.sliced_bytes)
    return found


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """For each batch size of a request, what was measured, or why it was not."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", request["devices"])
    warnings.simplefilter("ignore")  # donated arrays that cannot be used again
    axes = request["axes"]
    mesh = jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )
    build = load(request["build"])
    found = {}
    for batch in request["batches"]:
        try:
            found[str(batch)] = measure(build, mesh, batch, request["spec"])
        except Exception as error:
            # A batch that does not fit a mesh is a row of the table, not the end of it.
            found[str(batch)] = {"error": f"{type(error).__name__}: {error}"[:500]}
    return found


def main() -> None:
    found = answer(json.load(sys.stdin))
    print(MARK + json.dumps(found), flush=True)
