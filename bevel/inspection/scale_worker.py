"""Compile a step for a number of virtual devices, in the worker process of `scale`.

JAX fixes the number of devices when it starts, so each number needs its own process. The request on
standard input and the answer on standard output are JSON; compiler warnings go to standard error.
"""

import dataclasses
import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from bevel.errors import FixArgumentsError

MARK = "bevel.scale: "  # marks the answer among other printed lines


@dataclasses.dataclass(frozen=True)
class PlacedStep:
    """A step and the types of its arguments on a mesh.

    Attributes:
      function: the step. It takes the values of `arguments` by position.
      arguments: from roles to trees of `jax.ShapeDtypeStruct` with shardings. The roles "params",
        "optimizer", "noise" and "batch" are reported under these names, others as "other". All
        but "batch" are donated.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]


ROLES = ("params", "optimizer", "noise", "batch", "other")


def load(build: Mapping[str, str]) -> Callable[..., PlacedStep]:
    if "file" in build:
        spec = importlib.util.spec_from_file_location("scaled_step", build["file"])
        if spec is None or spec.loader is None:
            raise FixArgumentsError(
                f"{build['file']} is not a Python file: write 'file.py:function'."
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules["scaled_step"] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(build["module"])
    function: Any = module
    for part in build["name"].split("."):
        function = getattr(function, part, None)
    if not callable(function):
        where = build.get("file") or build["module"]
        raise FixArgumentsError(
            f"{where} has no function {build['name']!r}: name one that returns a PlacedStep."
        )
    return function


def measure(
    build: Callable[..., Any], mesh: Any, batch: int, spec: dict[str, Any]
) -> dict[str, Any]:
    """What one device holds, computes and sends for a batch size."""
    import jax

    from bevel.inspection.collectives import inspect_step

    step = build(mesh, batch, **spec)
    roles = list(step.arguments)
    donated = tuple(i for i, role in enumerate(roles) if role != "batch")
    jitted = jax.jit(step.function, donate_argnums=donated)
    compiled = jitted.lower(*step.arguments.values()).compile()
    report = inspect_step(compiled, mesh)
    held = dict.fromkeys(ROLES, 0)
    for role, tree in step.arguments.items():
        sizes = map(bytes_per_device, jax.tree.leaves(tree))
        held[role if role in ROLES else "other"] += sum(sizes)
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
    }


def bytes_per_device(leaf: Any) -> int:
    """The size of an array's shard on one device."""
    from bevel.inspection.compiled_step import bytes_of

    sharding = getattr(leaf, "sharding", None)
    shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
    return bytes_of(shape, leaf.dtype)


def by_kind(report: Any) -> dict[str, dict[str, float]]:
    """Totals for each kind of collective and mesh axes, such as `all-reduce over data`.

    An all-reduce of which each device uses only its slice counts as a reduce-scatter, which other
    backends turn it into.
    """
    totals: dict[str, dict[str, float]] = {}

    def add(kind: str, c: Any, size: float) -> None:
        sent = c.times * dataclasses.replace(c, kind=kind, bytes=size).sent
        key = f"{kind} over {'+'.join(c.axes or ())}"
        row = totals.setdefault(key, {"count": 0, "bytes": 0.0, "sent": 0.0})
        row["count"] += c.times
        row["bytes"] += c.times * size
        row["sent"] += sent

    for c in report.collectives:
        if c.times and c.group_size > 1:
            if c.sliced_bytes:
                add("reduce-scatter", c, c.sliced_bytes)
            if c.bytes > c.sliced_bytes:
                add(c.kind, c, c.bytes - c.sliced_bytes)
    return totals


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """For each batch size of a request, its figures or the error."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", request["devices"])
    warnings.simplefilter("ignore")  # about donated buffers that cannot be reused
    axes = request["axes"]
    mesh = jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )
    build = load(request["build"])
    figures = {}
    for batch in request["batches"]:
        try:
            figures[str(batch)] = measure(build, mesh, batch, request["spec"])
        except Exception as error:
            # A batch size that does not fit the mesh becomes a row without figures.
            figures[str(batch)] = {"error": f"{type(error).__name__}: {error}"[:500]}
    return figures


def main() -> None:
    print(MARK + json.dumps(answer(json.load(sys.stdin))), flush=True)
