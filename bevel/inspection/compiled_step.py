"""Trace and compile a step for `doctor`, and name its arguments."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection import hlo
from bevel.inspection.collectives import inspect_step
from bevel.inspection.step_report import StepReport
from bevel.sharding.types import spec_axes

MiB = 2**20


@dataclasses.dataclass(frozen=True)
class Argument:
    """One array among the arguments of a step."""

    path: str
    shape: tuple[int, ...]
    dtype: Any
    sharding: Any  # None if the step does not read the argument
    is_param: bool

    @property
    def bytes(self) -> int:
        """The size of the full array."""
        return bytes_of(self.shape, self.dtype)

    @property
    def spec(self) -> str:
        return str(getattr(self.sharding, "spec", "a sharding without a mesh"))


@dataclasses.dataclass(frozen=True)
class Limits:
    """The number of bytes above which something is reported."""

    large: int = 64 * MiB  # an array that is replicated on every device
    sent: int = 4096  # what one device sends in one step


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step that was traced and compiled, but not run."""

    program: ClosedJaxpr
    compiled: Any
    report: StepReport
    mesh: dict[str, int]
    arguments: list[Argument]
    args_info: Any
    argnums: tuple[int, ...]
    limits: Limits

    @functools.cached_property
    def module(self) -> hlo.Module:
        return hlo.parse(self.compiled.as_text())

    @functools.cached_property
    def batch_axes(self) -> frozenset[str]:
        """The axes over which the leading dimension of data arguments is split."""
        return frozenset(
            axis
            for argument in self.arguments
            if not argument.is_param and isinstance(argument.sharding, NamedSharding)
            for axis in spec_axes((*argument.sharding.spec.partitions, None)[0])
        )

    def argument(self, path: str) -> Argument | None:
        return next((a for a in self.arguments if a.path == path), None)


def compile_step(
    function: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    mesh: Any,
    argnums: int | Sequence[int],
    limits: Limits,
) -> CompiledStep:
    """Traces and compiles a step. Arguments may be `jax.ShapeDtypeStruct`s."""
    if not callable(function):
        raise FixArgumentsError(
            f"doctor takes the function of a step, but got {type(function).__name__}: write "
            "doctor(step, *args, mesh=mesh), where step may be jitted."
        )
    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if any(not -len(args) <= i < len(args) for i in argnums):
        raise FixArgumentsError(
            f"argnums={argnums}, but there are {len(args)} positional arguments. Pass the "
            "positions of those that hold parameters and optimizer state."
        )
    argnums = tuple(i % len(args) for i in argnums)
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    traced = jitted.trace(*args, **kwargs)
    compiled = traced.lower().compile()
    report = inspect_step(compiled, mesh)
    if report.mesh is None or math.prod(report.mesh.values()) == 1:
        raise FixArgumentsError(
            "no argument of this step is on a mesh of several devices, so there is nothing to "
            "check. Place the arguments with bevel.sharding.place(tree, mesh, rules), or pass "
            "jax.ShapeDtypeStructs with a sharding."
        )
    infos = jax.tree.leaves(compiled.args_info)
    params = {id(x) for i in argnums for x in jax.tree.leaves(compiled.args_info[0][i])}
    shardings = jax.tree.leaves(compiled.input_shardings, is_leaf=lambda x: x is None)
    paths = traced.jaxpr.jaxpr.debug_info.arg_names
    arguments = [
        Argument(path or f"argument {i}", info.shape, info.dtype, sharding, id(info) in params)
        for i, (path, info, sharding) in enumerate(zip(paths, infos, shardings, strict=True))
    ]
    return CompiledStep(
        traced.jaxpr, compiled, report, report.mesh, arguments, compiled.args_info, argnums, limits
    )


def bytes_of(shape: Sequence[int], dtype: Any) -> int:
    # np.dtype does not accept the dtype of a JAX key.
    size = getattr(dtype, "itemsize", None) or np.dtype(dtype).itemsize
    return math.prod(shape) * size
