"""`bevel.explain`: what a call of `clipped_grad` does with each parameter, why, and its cost.

The rows are the plan that the engine runs (`plan.py`), with costs from shapes.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from bevel.clipping.arguments import Leaves, batch_size, split_call
from bevel.clipping.bounded import BoundedSensitivityCallable
from bevel.clipping.choose import NormChoice
from bevel.clipping.engine import plan_call
from bevel.clipping.memory import MemoryPlan
from bevel.clipping.norms.costs import NormCost
from bevel.clipping.options import Task
from bevel.clipping.plan import ClipPlan
from bevel.clipping.program.example_loops import ExampleLoop
from bevel.clipping.program.memory_estimate import estimate_memory
from bevel.errors import FixArgumentsError
from bevel.sharding.axes import ArgumentShardings, placement, subprograms
from bevel.sharding.tables import tables_within, wrapped

UNLIMITED = 10_000  # columns


@dataclasses.dataclass(frozen=True)
class ParameterRow:
    """One parameter: how its norm and its sum are computed."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    uses: str  # families of the equations that combine it with an example
    way: str
    memory: str  # materialised, held or recomputed: see `ClipPlan.memory_of`
    flops: float  # for norm and sum of the whole batch
    bytes: float  # moved for the same
    held: float  # bytes that live until the coefficients are known
    slack: float  # relative slack of the norm, for rows at random angles
    sharding: str
    why: str
    costs: Mapping[str, NormCost]  # for one example, of each way that is possible


@dataclasses.dataclass(frozen=True)
class CompiledCost:
    """What the compiler says about one program, per device."""

    flops: float
    temporary: int  # bytes
    peak: int  # bytes of arguments, outputs and temporaries, shared buffers counted once


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A table to print. FLOPs and bytes are estimates from shapes, except those of `compiled`."""

    rows: list[ParameterRow]
    batch_size: int
    grad_flops: float  # of the matrix products in jax.grad
    private_flops: float  # of those in clipped_grad, norms and sums included
    memory: MemoryPlan = dataclasses.field(default_factory=MemoryPlan)
    loops: Sequence[ExampleLoop] = ()  # what runs one example at a time
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)  # bytes, estimated
    compiled: dict[str, CompiledCost] | None = None

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. Costs are in FLOPs and bytes."""
        rows = [
            vars(row) | {"costs": {way: cost._asdict() for way, cost in row.costs.items()}}
            for row in self.rows
        ]
        compiled = {name: vars(cost) for name, cost in (self.compiled or {}).items()}
        text = {"memory": str(self.memory), "loops": [str(loop) for loop in self.loops]}
        return vars(self) | text | {"rows": rows, "compiled": compiled or None}

    def text(self, width: int | None = None) -> str:
        """The explanation in lines of at most `width` columns. A table that is wider is split."""
        head = ["parameter", "shape", "dtype", "uses", "norm", "memory", "FLOPs", "bytes"]
        head += ["held", "slack", "sharding", "why"]
        lines = []
        for row in self.rows:
            shape = "x".join(map(str, row.shape)) or "scalar"
            cells = [row.path, shape, row.dtype, row.uses, row.way, row.memory, short(row.flops)]
            cells += [f"{short(row.bytes)}B", f"{short(row.held)}B", f"{row.slack:.1e}"]
            lines.append([*cells, row.sharding, row.why])
        text: list[Any] = tables_within(width or UNLIMITED, head, lines)
        if len(text) > 1:
            text = [part for table in text for part in (table, "")]
        ratio = self.private_flops / self.grad_flops if self.grad_flops else 1.0
        held = sum(row.held for row in self.rows)
        text.append(
            f"batch of {self.batch_size}: {short(self.private_flops)} FLOPs, {ratio:.2f} times "
            f"those of jax.grad ({short(self.grad_flops)}); {short(held)}B held for the sum"
        )
        text.append(str(self.memory))
        text += map(str, self.loops)
        for name, peak in self.peaks.items():
            text.append(f"estimated {name}: {short(peak)}B at the peak")
        for name, cost in (self.compiled or {}).items():
            text.append(
                f"compiled {name}: {short(cost.flops)} FLOPs, {short(cost.temporary)}B "
                f"temporary, {short(cost.peak)}B at the peak"
            )
        return wrapped(*text, width=width or UNLIMITED)


def explain(
    grad_fn: BoundedSensitivityCallable, *args: Any, compile: bool = False, **kwargs: Any
) -> Explanation:
    """Shows how `grad_fn(*args, **kwargs)` computes norms and sums, and what that costs.

    Nothing is computed: the call, and `jax.grad` of the loss on the whole batch, are only traced.
    Memory is estimated from shapes where all arguments are on one device.

    Args:
      grad_fn: from `bevel.clipped_grad`.
      args, kwargs: as for a call; arrays or `jax.ShapeDtypeStruct`.
      compile: also compile both programs, and report the compiler's FLOPs and memory.
    """
    task = getattr(grad_fn, "task", None)
    if task is None or not task.gradient:
        raise FixArgumentsError("explain needs the result of clipped_grad, and its arguments.")
    plan, shardings, paths, size = plan_of(task, args, kwargs)
    rows = [_row(plan, choice, paths, shardings, size) for choice in plan.choices]
    forward = size * products(plan.loss.jaxpr)
    plain = size * sum(row.costs["keep"].flops for row in rows if row.costs)
    private = sum(row.flops for row in rows)
    programs = _traced_programs(grad_fn, task, args, kwargs)
    peaks = dict[str, int]()
    if not _on_several_devices((args, kwargs)):
        peaks = {name: estimate_memory(program.jaxpr) for name, program in programs.items()}
    compiled = {name: _compiled_cost(x) for name, x in programs.items()} if compile else None
    memory = plan.memory
    flops = (2 + memory.has_remat) * forward + plain, memory.passes * forward + private
    return Explanation(rows, size, *flops, memory, plan.example_loops, peaks, compiled)


def plan_of(
    task: Task, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[ClipPlan, ArgumentShardings, tuple[str, ...], int]:
    """The plan of a call, its arguments' shardings, the paths of parameters, and the batch size."""
    concrete: ArgumentShardings | None = None
    if not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((args, kwargs))):
        _, leaves = split_call(task, tuple(args), kwargs)
        concrete = ArgumentShardings.on(leaves.params, leaves.batch)
    found = []

    def traced(*args: Any, **kwargs: Any) -> None:
        call, leaves = split_call(task, args, kwargs)
        shardings = concrete or ArgumentShardings.on(leaves.params, leaves.batch)
        arrays = Leaves(*([jax.numpy.asarray(x) for x in group] for group in leaves))
        plan, _ = plan_call(task, call, arrays, shardings)
        found.append((plan, shardings, call.param_paths, batch_size(arrays.batch, None)))

    jax.eval_shape(*_of_arrays(traced, args, kwargs))
    return found[0]


def _row(
    plan: ClipPlan,
    choice: NormChoice,
    paths: Sequence[str],
    shardings: ArgumentShardings,
    size: int,
) -> ParameterRow:
    aval = plan.arguments.params[choice.param]
    gradient = math.prod(aval.shape) * np.dtype(aval.dtype).itemsize
    cost = choice.costs.get(choice.way, NormCost(0.0, 3.0 * gradient, gradient, 1e-5))
    families = [use.rule.family for use in choice.uses or ()]
    families += ["shared term"] * len(choice.shared_terms)
    counts = [f"{families.count(family)} {family}" for family in dict.fromkeys(families)]
    sharding = shardings.params[choice.param]
    memory = plan.memory_of(choice.param)
    return ParameterRow(
        path=paths[choice.param],
        shape=tuple(aval.shape),
        dtype=np.dtype(aval.dtype).name,
        uses=", ".join(counts) or "by JAX",
        way=choice.way,
        memory=memory,
        flops=size * cost.flops,
        bytes=size * cost.bytes,
        held=0.0 if memory == "recomputed" else size * cost.memory,
        slack=cost.slack,
        sharding="-" if sharding is None else str(sharding.spec),
        why=choice.why,
        costs=dict(choice.costs),
    )


def products(program: ClosedJaxpr) -> float:
    """FLOPs of the matrix products and convolutions of a program, loops counted in full.

    A ragged product counts each row once for every group: that is what the compiler makes of it
    where it has no kernel.
    """

    def count(jaxpr: Any, times: float) -> float:
        total = 0.0
        for eqn in jaxpr.eqns:
            avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
            name = eqn.primitive.name
            if name == "dot_general":
                contracting = eqn.params["dimension_numbers"][0][0]
                inner = math.prod(avals[0].shape[i] for i in contracting)
                total += 2.0 * times * math.prod(avals[-1].shape) * inner
            elif name == "conv_general_dilated":
                kernel = avals[1].shape
                channels = eqn.params["dimension_numbers"].rhs_spec[0]
                window = math.prod(kernel) // kernel[channels]
                total += 2.0 * times * math.prod(avals[-1].shape) * window
            elif name == "ragged_dot_general":
                numbers = eqn.params["ragged_dot_dimension_numbers"]
                (_, contracting), (_, batch) = numbers.dot_dimension_numbers
                summed = {*contracting, *batch, *numbers.rhs_group_dimensions}
                columns = [n for i, n in enumerate(avals[1].shape) if i not in summed]
                groups = avals[2].shape[-1]
                total += 2.0 * times * groups * math.prod(avals[0].shape) * math.prod(columns)
            inside = times * _steps(eqn)
            bodies = subprograms(eqn.params)
            total += max((count(body, inside) for body in bodies), default=0.0)
        return total

    return count(program.jaxpr, 1.0)


def _steps(eqn: Any) -> int:
    """How often an equation runs its body, as far as is known before it runs."""
    if eqn.primitive.name == "scan":
        return int(eqn.params["length"])
    if eqn.primitive.name == "pallas_call":
        return math.prod(n for n in eqn.params["grid_mapping"].grid if isinstance(n, int))
    return 1


def _traced_programs(
    grad_fn: Any, task: Task, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The clipped gradient and, where the loss takes a whole batch, `jax.grad`."""

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
    """A call as a function of its arrays, and the arrays. Python values stay what they are."""
    leaves, tree = jax.tree.flatten((tuple(args), kwargs))

    def call(arrays: dict[int, Any]) -> Any:
        filled = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = jax.tree.unflatten(tree, filled)
        return function(*args, **kwargs)

    return call, {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")}


def _on_several_devices(arguments: Any) -> bool:
    """Whether devices hold parts of the arguments: shapes then do not tell a device's memory."""
    places = [placement(x) for x in jax.tree.leaves(arguments)]
    sizes = [place.num_devices for place in places if place is not None]
    return max([jax.sharding.get_abstract_mesh().size, *sizes]) > 1


def _compiled_cost(traced: Any) -> CompiledCost:
    program = traced.lower().compile()
    memory: Any = program.memory_analysis()
    cost: Any = program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    peak = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    peak += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return CompiledCost(float((cost or {}).get("flops", math.nan)), memory.temp_size_in_bytes, peak)


def short(number: float) -> str:
    """A number with three digits and a unit."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}P"
