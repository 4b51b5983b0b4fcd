"""Check shardings: large replicated arrays, and parameters whose sharding changes in a step."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bevel.inspection.compiled_step import CompiledStep, bytes_of
from bevel.inspection.findings import Finding
from bevel.sharding.axes import equations_in
from bevel.sharding.source_lines import line_of
from bevel.sharding.tables import short


def replicated_arrays(step: CompiledStep) -> Iterator[Finding]:
    """Large arrays that are replicated although a mesh axis could split them."""
    devices = math.prod(step.mesh.values())

    def finding(what: str, shape: tuple[int, ...], size: int, fix: str, line: Any) -> Finding:
        what = f"{what} {shape}, {short(size, 'B')}, is replicated on each of {devices} devices"
        return Finding("warning", "replicated array", what, fix, line, size * (1 - 1 / devices))

    for argument in step.arguments:
        spec = possible_spec(argument.shape, step.mesh)
        replicated = argument.sharding is not None and argument.sharding.is_fully_replicated
        if replicated and argument.bytes >= step.limits.large and spec:
            fix = f"place it with NamedSharding(mesh, {spec})"
            if argument.is_param:
                fix += ", or with bevel.sharding.place and its rules fsdp or tensor"
            yield finding(argument.path, argument.shape, argument.bytes, fix, None)
    for value in step.program.consts:
        size = getattr(value, "nbytes", 0)
        if size >= step.limits.large:
            fix = "pass it as an argument that is placed on the mesh: arrays that a function closes"
            fix += " over are compiled into the program"
            yield finding("a constant", np.shape(value), size, fix, None)
    for eqn in equations_in(step.program.jaxpr, "sharding_constraint"):
        aval: Any = eqn.outvars[0].aval
        size = bytes_of(aval.shape, aval.dtype)
        sharding, unconstrained = eqn.params["sharding"], eqn.params["unconstrained_dims"]
        replicated = sharding.is_fully_replicated and not unconstrained
        spec = possible_spec(aval.shape, step.mesh)
        if replicated and size >= step.limits.large and spec:
            fix = f"constrain it to {spec}, or leave the constraint out"
            yield finding("a constrained value", aval.shape, size, fix, line_of(eqn))


def possible_spec(shape: tuple[int, ...], mesh: dict[str, int]) -> str | None:
    """A PartitionSpec that would split an array: the largest dimension over the largest axis."""
    for axis, size in sorted(mesh.items(), key=lambda item: -item[1]):
        for d in sorted(range(len(shape)), key=lambda d: -shape[d]):
            if size > 1 and shape[d] >= size and shape[d] % size == 0:
                return f"P({', '.join(['None'] * d + [repr(axis)])})"
    return None


def moved_parameters(step: CompiledStep) -> Iterator[Finding]:
    """Parameters whose new value has another sharding, so that the next step has to move it."""
    infos = jax.tree.leaves(step.args_info)
    arguments = {id(info): argument for info, argument in zip(infos, step.arguments, strict=True)}
    for number in step.argnums:
        info_tree = step.args_info[0][number]
        returned = find_like(info_tree, step.compiled.out_info, step.compiled.output_shardings)
        for info, sharding in zip(jax.tree.leaves(info_tree), returned, strict=False):
            x = arguments[id(info)]
            if x.sharding is None or x.sharding.is_equivalent_to(sharding, len(x.shape)):
                continue
            new = getattr(sharding, "spec", sharding)
            what = f"{x.path} {x.shape} has the spec {x.spec} before the step and {new} after it: "
            what += "the next step compiles again, or moves it"
            fix = "pass the shardings of the arguments to jax.jit as out_shardings, or constrain "
            fix += "the new value with jax.lax.with_sharding_constraint"
            yield Finding("warning", "moved parameter", what, fix, None, x.bytes)


def find_like(info_tree: Any, out_info: Any, shardings: Any) -> list[Any]:
    """The shardings of the result, or of its element, with the structure and shapes of an argument.

    Empty if there is none.
    """
    candidates = [(out_info, shardings)]
    if isinstance(out_info, tuple | list):
        candidates += list(zip(out_info, shardings, strict=True))
    elif isinstance(out_info, dict):
        candidates += [(out_info[key], shardings[key]) for key in out_info]

    def types(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(x.shape, x.dtype) for x in leaves]

    for info, info_shardings in candidates:
        if types(info) == types(info_tree):
            return jax.tree.leaves(info_shardings)
    return []
