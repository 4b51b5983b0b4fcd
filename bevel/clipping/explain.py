"""What `clipped_grad` does with each parameter, why, and what it costs."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from bevel.clipping.arguments import batch_size, split_call
from bevel.clipping.bounded import BoundedSensitivityCallable
from bevel.clipping.choose import NormChoice, NormCost, choose, tapped_of
from bevel.clipping.engine import low_memory
from bevel.clipping.options import Task
from bevel.clipping.program.memory_estimate import estimate_memory
from bevel.clipping.program.meshes import on_mesh
from bevel.clipping.program.trace import ExampleFunction, trace_loss
from bevel.clipping.uses.find import find_uses, without_common
from bevel.errors import FixArgumentsError
from bevel.sharding.axes import ArgumentShardings, placement, subprograms


@dataclasses.dataclass(frozen=True)
class _ParameterRow:
    """One parameter: how its norm and its sum are taken."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    uses: str  # families of the equations in which it meets an example
    way: str
    memory: str  # kept, held or again
    flops: float  # of the whole batch, for norm and sum
    bytes: float  # moved, likewise
    held: float  # bytes that live until the coefficients are known
    slack: float  # of the norm, for rows at random angles
    sharding: str
    why: str
    costs: dict[str, NormCost]  # of one example, for each way that could be taken


@dataclasses.dataclass(frozen=True)
class _CompiledCost:
    """What the compiler says of one program, per device."""

    flops: float
    temporary: int
    peak: int  # arguments, outputs and temporaries, without what they share


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A table; print it. FLOPs and bytes are estimates from shapes, those of `compiled` are not."""

    rows: list[_ParameterRow]
    batch_size: int
    grad_flops: float  # of the products in jax.grad
    private_flops: float  # and here, beside those of norms and sums
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)  # bytes, from shapes
    compiled: dict[str, _CompiledCost] | None = None

    def __str__(self) -> str:
        head = ["parameter", "shape", "dtype", "uses", "norm", "memory", "FLOPs", "bytes"]
        head += ["held", "slack", "sharding", "why"]
        lines = [head]
        for row in self.rows:
            lines.append(
                [
                    row.path,
                    "x".join(map(str, row.shape)) or "scalar",
                    row.dtype,
                    row.uses,
                    row.way,
                    row.memory,
                    short(row.flops),
                    short(row.bytes) + "B",
                    short(row.held) + "B",
                    f"{row.slack:.1e}",
                    row.sharding,
                    row.why,
                ]
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        ratio = self.private_flops / self.grad_flops if self.grad_flops else 1.0
        held = sum(row.held for row in self.rows)
        text.append(
            f"batch of {self.batch_size}: {short(self.private_flops)} FLOPs, {ratio:.2f} times "
            f"those of jax.grad ({short(self.grad_flops)}); {short(held)}B held for the sum"
        )
        for name, peak in self.peaks.items():
            text.append(f"estimated {name}: {short(peak)}B at the peak")
        for name, found in (self.compiled or {}).items():
            text.append(
                f"compiled {name}: {short(found.flops)} FLOPs, {short(found.temporary)}B "
                f"temporary, {short(found.peak)}B at the peak"
            )
        return "\n".join(text)


def explain(
    grad_fn: BoundedSensitivityCallable, *args: Any, compile: bool = False, **kwargs: Any
) -> Explanation:
    """How `grad_fn(*args, **kwargs)` takes norms and sums, and its memory; nothing is computed.

    The cost is that of tracing the call, and `jax.grad` of the loss on the whole batch. Memory is
    estimated from shapes (`program/memory_estimate.py`) where all arguments are on one device.

    Args:
      grad_fn: from `bevel.clipped_grad`.
      args, kwargs: as for a call; arrays or `jax.ShapeDtypeStruct`.
      compile: also compile both, and report what the compiler says of FLOPs and memory.
    """
    task = getattr(grad_fn, "task", None)
    if task is None or not task.gradient:
        raise FixArgumentsError("explain takes what clipped_grad returned, and its arguments.")
    found = list[Explanation]()

    def planned(*args: Any, **kwargs: Any) -> None:
        found.append(_plan(task, args, kwargs))

    if any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((args, kwargs))):
        jax.eval_shape(*_of_arrays(planned, args, kwargs))
    else:
        planned(*args, **kwargs)
    programs = _traced_programs(grad_fn, task, args, kwargs)
    peaks = dict[str, int]()
    if not _on_several_devices((args, kwargs)):
        peaks = {name: estimate_memory(program.jaxpr) for name, program in programs.items()}
    compiled = {name: _compiled_program(x) for name, x in programs.items()} if compile else None
    return dataclasses.replace(found[0], peaks=peaks, compiled=compiled)


def _plan(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    """What would be done for these arguments."""
    call, leaves = split_call(
        args,
        kwargs,
        argnums=task.argnums,
        batch_argnums=task.batch_argnums,
        prng_argnum=task.prng_argnum,
    )
    size = batch_size(leaves.batch, None)
    seen = ArgumentShardings.on(leaves.params, leaves.batch)
    example = ExampleFunction(task.fun, call, task.has_aux, task.keep_batch_dim)
    layout, leaves = on_mesh(task, leaves, seen)
    loss, types = trace_loss(example, leaves, layout)
    found = find_uses(loss.jaxpr, len(types.params), len(types.constants))
    if layout.manual or layout.explicit_mesh is not None:
        found = without_common(found)
    whole = task.transform is not None or task.clip.grid_scale is not None
    norms = task.norms
    if whole or task.engine == "vmap":
        found, norms = dict.fromkeys(found), "keep"
    chosen = choose(found, types.params, norms, call.param_paths)
    rows = []
    for c in chosen:
        tap = tapped_of(c, types.params[c.param])
        memory = "kept" if tap is None or tap.way == "form" else "held"
        if tap is not None and low_memory(task, tap, layout):
            memory = "again"
        rows.append(
            _row_of(c, call.param_paths[c.param], types.params[c.param], memory, seen, size)
        )
    forward = size * products(loss.jaxpr)
    formed = [row.costs["keep"].flops for row in rows if row.costs]
    plain, private = size * sum(formed), sum(row.flops for row in rows)
    return Explanation(rows, size, 2 * forward + plain, 2 * forward + private)


def _row_of(
    chosen: NormChoice, path: str, aval: Any, memory: str, seen: ArgumentShardings, size: int
) -> _ParameterRow:
    kept = math.prod(aval.shape) * np.dtype(aval.dtype).itemsize
    cost = chosen.costs.get(chosen.way, NormCost(0.0, 3.0 * kept, kept, 1e-5))
    place = seen.params[chosen.param]
    families = [use.rule.family for use in chosen.uses or ()]
    families += ["common"] * len(chosen.common)
    uses = ", ".join(f"{families.count(f)} {f}" for f in dict.fromkeys(families)) or "by JAX"
    return _ParameterRow(
        path,
        tuple(aval.shape),
        np.dtype(aval.dtype).name,
        uses,
        chosen.way,
        memory,
        size * cost.flops,
        size * cost.bytes,
        0.0 if memory == "again" else size * cost.memory,
        cost.slack,
        "-" if place is None else str(place.spec),
        chosen.why or "the cheapest",
        dict(chosen.costs),
    )


def products(program: ClosedJaxpr) -> float:
    """FLOPs of the matrix products and convolutions of a program, loops counted in full."""

    def of(jaxpr: Any, times: float) -> float:
        total = 0.0
        for eqn in jaxpr.eqns:
            avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
            name = eqn.primitive.name
            if name == "dot_general":
                contract = eqn.params["dimension_numbers"][0][0]
                inner = math.prod(avals[0].shape[i] for i in contract)
                total += 2.0 * times * math.prod(avals[-1].shape) * inner
            elif name == "conv_general_dilated":
                kernel = avals[1].shape
                groups = eqn.params["dimension_numbers"].rhs_spec[0]
                taken = math.prod(kernel) // kernel[groups]
                total += 2.0 * times * math.prod(avals[-1].shape) * taken
            inside = times * eqn.params.get("length", 1) if name == "scan" else times
            bodies = subprograms(eqn.params)
            total += max((of(b, inside) for b in bodies), default=0.0)
        return total

    return of(program.jaxpr, 1.0)


def _traced_programs(
    grad_fn: Any, task: Task, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """`jax.grad`, where the loss takes a whole batch, and the clipped gradient."""

    def traced(function: Any) -> Any:
        call, arrays = _of_arrays(function, args, kwargs)
        return jax.jit(call).trace(arrays)

    found = {"clipped_grad": traced(grad_fn)}
    if task.argnums is not None and task.keep_batch_dim and task.prng_argnum is None:
        # A loss may be written for a batch of one, and have no jax.grad on more.
        with contextlib.suppress(Exception):
            found = {"jax.grad": traced(jax.grad(task.fun, task.argnums, task.has_aux))} | found
    return found


def _of_arrays(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[[dict[int, Any]], Any], dict[int, Any]]:
    """A call as a function of its arrays, and these. Python values stay what they are."""
    leaves, tree = jax.tree.flatten((tuple(args), kwargs))

    def call(arrays: dict[int, Any]) -> Any:
        given = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(tree, given)
        return function(*args, **kwargs)

    return call, {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")}


def _on_several_devices(arguments: Any) -> bool:
    """Whether a device holds parts of arguments only: then shapes do not tell its memory."""
    places = [placement(x) for x in jax.tree.leaves(arguments)]
    sizes = [place.num_devices for place in places if place is not None]
    return max([jax.sharding.get_abstract_mesh().size, *sizes]) > 1


def _compiled_program(traced: Any) -> _CompiledCost:
    program = traced.lower().compile()
    memory: Any = program.memory_analysis()
    cost: Any = program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    peak += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return _CompiledCost(
        float((cost or {}).get("flops", math.nan)), memory.temp_size_in_bytes, peak
    )


def short(number: float) -> str:
    """A number in three digits and a unit."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"
