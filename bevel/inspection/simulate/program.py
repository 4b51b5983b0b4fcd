"""Evaluate a program whose `shard_map`s run on one device, their bodies vmapped over the mesh."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection.simulate.collectives import CASTS, named_axes, names_of, rule_of
from bevel.inspection.simulate.shards import check_specs, joined, over_devices, split
from bevel.sharding import types
from bevel.sharding.axes import subprograms

# Calls that are evaluated in place, and the parameter that holds their body. Custom derivatives
# and remats are: whoever differentiates does so before the program comes here.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "eval_jaxpr": "jaxpr",
}
# Equations whose bodies are traced anew.
BODIES = {"scan", "while", "cond", "custom_linear_solve"}
# Random bits of these implementations depend on the batch that `vmap` makes of the keys.
UNBATCHED_KEYS = {"key<rbg>", "key<urbg>"}  # rbg and unsafe_rbg
FROM_KEYS = {"random_bits", "random_split", "random_fold_in"}


@dataclasses.dataclass(frozen=True)
class Around:
    """Where a program is evaluated."""

    axes: tuple[str, ...] = ()  # of the mesh, vmapped around the program, in its order
    linear: bool = False  # the program is linear, and may be transposed


def evaluate(program: Jaxpr | ClosedJaxpr, args: Sequence[Any], around: Around) -> list[Any]:
    """Runs a program, its collectives and inner shard_maps simulated."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    consts = getattr(program, "consts", ())
    env: dict[Any, Any] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _run(eqn, [read(v) for v in eqn.invars], around), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _run(eqn: JaxprEqn, inputs: list[Any], around: Around) -> Sequence[Any]:
    """The outputs of one equation."""
    name = eqn.primitive.name
    if name in CASTS:
        return inputs
    rule = rule_of(eqn)
    if rule is not None and named_axes(eqn) & set(around.axes):
        _check_order(eqn, around)
        return [rule(*inputs, **eqn.params)]
    if name == "shard_map":
        return _run_shard_map(eqn, inputs, around)
    if name in CALLS:
        return evaluate(eqn.params[CALLS[name]], inputs, around)
    _check_understood(eqn, set(around.axes))
    changed: dict[str, Any] = {
        k: None for k, v in eqn.params.items() if isinstance(v, NamedSharding)
    }
    if name in BODIES:
        _check_agreement(eqn, set(around.axes))
        if name == "cond" and around.linear:
            return _select_branch(eqn, inputs, around)
        changed |= {k: _anew(v, around) for k, v in eqn.params.items() if subprograms({k: v})}
    if name == "pure_callback" and eqn.params["vmap_method"] is None:
        changed["vmap_method"] = "sequential"
    params = eqn.primitive.get_bind_params(eqn.params | changed)

    def bind(*inputs: Any) -> Any:
        return eqn.primitive.bind(*inputs, **params)

    outputs = (_one_by_one(bind) if _draws_unbatched(eqn) else bind)(*inputs)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def _run_shard_map(eqn: JaxprEqn, inputs: Sequence[Any], around: Around) -> Sequence[Any]:
    """Cuts the inputs, runs the body for all devices and puts the outputs together."""
    in_specs, out_specs = eqn.params["in_specs"], eqn.params["out_specs"]
    check_specs((*in_specs, *out_specs))
    manual = eqn.params["newly_manual_axes"]
    sizes = {name: size for name, size in eqn.params["mesh"].shape.items() if name in manual}
    shards = [split(x, spec, sizes) for x, spec in zip(inputs, in_specs, strict=True)]

    def body(*own: Any) -> list[Any]:
        within = dataclasses.replace(around, axes=(*around.axes, *sizes))
        return evaluate(eqn.params["jaxpr"], own, within)

    stacked = over_devices(body, sizes, in_specs)(*shards)
    return [joined(x, spec, sizes) for x, spec in zip(stacked, out_specs, strict=True)]


def _select_branch(eqn: JaxprEqn, inputs: Sequence[Any], around: Around) -> list[Any]:
    """All branches, and the one that is taken.

    Of a `cond` on which devices disagree `vmap` makes the same, but with a stop_gradient in it,
    which cannot be transposed. A branch that is not taken has no coefficients worth the name, and
    may divide by zero: its inputs are masked too, so that no NaN comes back through them.
    """
    index, *operands = inputs

    def masked(x: Any, number: int) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        taken = index == jnp.asarray(number, index.dtype)
        return jax.lax.select_n(taken, jnp.zeros_like(x), x)

    outputs = [
        evaluate(branch, [masked(x, number) for x in operands], around)
        for number, branch in enumerate(eqn.params["branches"])
    ]
    return [jax.lax.select_n(index, *cases) for cases in zip(*outputs, strict=True)]


def _anew(body: Any, around: Around) -> Any:
    """A body, or several, traced without what types say about the mesh."""
    if isinstance(body, tuple | list):
        bodies = [_anew(b, around) for b in body]
        return type(body)(*bodies) if hasattr(body, "_fields") else type(body)(bodies)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    variables = (body.jaxpr if isinstance(body, ClosedJaxpr) else body).invars
    avals: list[Any] = [getattr(v.aval, "inner_aval", v.aval) for v in variables]
    bare = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    traced = jax.make_jaxpr(lambda *args: evaluate(body, args, around))(*bare)
    return traced if isinstance(body, ClosedJaxpr) else traced.jaxpr


def _check_understood(eqn: JaxprEqn, axes: set[str]) -> None:
    """Raises for an equation that communicates in a way that is not known here."""
    name = eqn.primitive.name
    inner = set() if name in BODIES else _axes_within(subprograms(eqn.params))
    unknown = axes & (inner | (named_axes(eqn) if name not in BODIES else set()))
    if unknown:
        raise FixArgumentsError(
            f"{name!r} uses the mesh axes {sorted(unknown)} in a way that bevel cannot simulate: "
            "run this program on the real mesh, or write it with the collectives of jax.lax."
        )


def _check_order(eqn: JaxprEqn, around: Around) -> None:
    """Raises for a permutation over axes in another order than the mesh's, as lowering does."""
    names = names_of(eqn.params.get("axis_name", ()))
    ordered = tuple(a for a in around.axes if a in names)
    if eqn.primitive.name == "ppermute" and names != ordered:
        raise FixArgumentsError(
            f"ppermute over {names}: JAX takes the axes in the order of the mesh only. Write "
            f"{ordered}, and number the devices along them."
        )


def _check_agreement(eqn: JaxprEqn, axes: set[str]) -> None:
    """Raises where devices would wait for others that never come.

    Types say which devices may take different branches, or leave a loop at different times; with
    `check_vma=False` nothing says it.
    """
    if eqn.primitive.name == "cond":
        differs = types.varying_axes(eqn.invars[0].aval)
    elif eqn.primitive.name == "while":
        condition = eqn.params["cond_jaxpr"]
        differs = types.varying_axes(condition.out_avals[0])
    else:
        return
    stuck = axes & differs & _axes_within(subprograms(eqn.params), communicating=True)
    if stuck:
        what = "branch of a cond" if eqn.primitive.name == "cond" else "while_loop"
        raise FixArgumentsError(
            f"a collective over {sorted(stuck)} is inside of a {what}, and devices along these "
            "axes may disagree on whether to run it: on a real mesh those that do would wait "
            "forever. Move the collective out, or make the condition the same on all of them, as "
            "with jax.lax.pmax."
        )


def _axes_within(programs: Sequence[Jaxpr], communicating: bool = False) -> set[str]:
    """The mesh axes that programs use, at any depth."""
    found: set[str] = set()
    for program in programs:
        for eqn in program.eqns:
            if eqn.primitive.name in CASTS or (
                communicating and eqn.primitive.name == "axis_index"
            ):
                continue
            found |= named_axes(eqn) | _axes_within(subprograms(eqn.params), communicating)
    return found


def _draws_unbatched(eqn: JaxprEqn) -> bool:
    """Whether `vmap` of an equation would draw other random bits than a loop."""
    if eqn.primitive.name == "rng_bit_generator":
        return True
    if eqn.primitive.name not in FROM_KEYS:
        return False
    key: Any = eqn.invars[0].aval
    return str(key.dtype) in UNBATCHED_KEYS


def _one_by_one(bind: Any) -> Any:
    return jax.custom_batching.sequential_vmap(bind)
