"""Evaluate programs with `shard_map`s on one device, their bodies vmapped over the mesh."""

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

# Calls that are evaluated inline, and the parameter that holds their body. Custom derivatives and
# remats can be, because programs are differentiated before they are evaluated here.
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
# Equations whose bodies are traced again.
BODIES = {"scan", "while", "cond", "custom_linear_solve"}
# With these implementations, random bits change when `vmap` batches the keys.
UNBATCHED_KEYS = {"key<rbg>", "key<urbg>"}  # rbg and unsafe_rbg
FROM_KEYS = {"random_bits", "random_split", "random_fold_in"}


@dataclasses.dataclass(frozen=True)
class Context:
    """The context in which a program is evaluated."""

    axes: tuple[str, ...] = ()  # the mesh axes of the enclosing vmaps, in mesh order
    linear: bool = False  # the program is linear, and may be transposed


def evaluate(program: Jaxpr | ClosedJaxpr, args: Sequence[Any], context: Context) -> list[Any]:
    """Runs a program with its collectives and inner `shard_map`s simulated."""
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    consts = getattr(program, "consts", ())
    env: dict[Any, Any] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _run(eqn, [read(v) for v in eqn.invars], context), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _run(eqn: JaxprEqn, inputs: list[Any], context: Context) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in CASTS:
        return inputs
    rule = rule_of(eqn)
    if rule is not None and named_axes(eqn) & set(context.axes):
        _check_order(eqn, context)
        return [rule(*inputs, **eqn.params)]
    if name == "shard_map":
        return _run_shard_map(eqn, inputs, context)
    if name in CALLS:
        return evaluate(eqn.params[CALLS[name]], inputs, context)
    if name not in BODIES:
        _check_supported(eqn, set(context.axes))
    changed: dict[str, Any] = {
        k: None for k, v in eqn.params.items() if isinstance(v, NamedSharding)
    }
    if name in BODIES:
        _check_agreement(eqn, set(context.axes))
        if name == "cond" and context.linear:
            return _select_branch(eqn, inputs, context)
        changed |= {k: _retraced(v, context) for k, v in eqn.params.items() if subprograms({k: v})}
    if name == "pure_callback" and eqn.params["vmap_method"] is None:
        changed["vmap_method"] = "sequential"
    params = eqn.primitive.get_bind_params(eqn.params | changed)

    def bind(*inputs: Any) -> Any:
        return eqn.primitive.bind(*inputs, **params)

    run = jax.custom_batching.sequential_vmap(bind) if _needs_sequential_vmap(eqn) else bind
    outputs = run(*inputs)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def _run_shard_map(eqn: JaxprEqn, inputs: Sequence[Any], context: Context) -> Sequence[Any]:
    """Splits the inputs, runs the body for all devices and joins the outputs."""
    in_specs, out_specs = eqn.params["in_specs"], eqn.params["out_specs"]
    check_specs((*in_specs, *out_specs))
    manual = eqn.params["newly_manual_axes"]
    sizes = {name: size for name, size in eqn.params["mesh"].shape.items() if name in manual}
    shards = [split(x, spec, sizes) for x, spec in zip(inputs, in_specs, strict=True)]

    def body(*shard: Any) -> list[Any]:
        inner = dataclasses.replace(context, axes=(*context.axes, *sizes))
        return evaluate(eqn.params["jaxpr"], shard, inner)

    stacked = over_devices(body, sizes, in_specs)(*shards)
    return [joined(x, spec, sizes) for x, spec in zip(stacked, out_specs, strict=True)]


def _select_branch(eqn: JaxprEqn, inputs: Sequence[Any], context: Context) -> list[Any]:
    """Evaluates all branches and selects the outputs of the one that is taken.

    `vmap` does the same for a `cond` on which devices disagree, but inserts a `stop_gradient`,
    which cannot be transposed. The coefficients of the other branches are meaningless and may be
    non-finite, so their inputs are masked too: no NaN then comes back in the transpose.
    """
    index, *operands = inputs

    def masked(x: Any, number: int) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        taken = index == jnp.asarray(number, index.dtype)
        return jax.lax.select_n(taken, jnp.zeros_like(x), x)

    outputs = [
        evaluate(branch, [masked(x, number) for x in operands], context)
        for number, branch in enumerate(eqn.params["branches"])
    ]
    return [jax.lax.select_n(index, *cases) for cases in zip(*outputs, strict=True)]


def _retraced(body: Any, context: Context) -> Any:
    """Traces a body, or several, again without the mesh in its types."""
    if isinstance(body, tuple | list):
        bodies = [_retraced(b, context) for b in body]
        return type(body)(*bodies) if hasattr(body, "_fields") else type(body)(bodies)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    variables = (body.jaxpr if isinstance(body, ClosedJaxpr) else body).invars
    avals: list[Any] = [getattr(v.aval, "inner_aval", v.aval) for v in variables]
    bare = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    traced = jax.make_jaxpr(lambda *args: evaluate(body, args, context))(*bare)
    return traced if isinstance(body, ClosedJaxpr) else traced.jaxpr


def _check_supported(eqn: JaxprEqn, axes: set[str]) -> None:
    """Raises for an equation that communicates but has no rule."""
    unknown = axes & (named_axes(eqn) | _axes_within(subprograms(eqn.params)))
    if unknown:
        raise FixArgumentsError(
            f"{eqn.primitive.name!r} uses the mesh axes {sorted(unknown)} in a way that bevel "
            "cannot simulate: run this program on a real mesh, or write it with the collectives of "
            "jax.lax."
        )


def _check_order(eqn: JaxprEqn, context: Context) -> None:
    """Raises if a ppermute names axes in another order than the mesh, as lowering does."""
    names = names_of(eqn.params.get("axis_name", ()))
    ordered = tuple(a for a in context.axes if a in names)
    if eqn.primitive.name == "ppermute" and names != ordered:
        raise FixArgumentsError(
            f"ppermute over {names}: JAX requires the order of the mesh. Write {ordered}, and "
            "number the devices accordingly."
        )


def _check_agreement(eqn: JaxprEqn, axes: set[str]) -> None:
    """Raises if devices might wait forever for others in a collective.

    Types tell whether devices may take different branches, or leave a loop at different times.
    With `check_vma=False` this is not known, and not checked.
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
            f"a collective over {sorted(stuck)} is inside a {what}, and devices along these axes "
            "may disagree on whether to run it. On a real mesh, those that do would wait forever. "
            "Move the collective out, or make the condition equal on all devices, for example "
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


def _needs_sequential_vmap(eqn: JaxprEqn) -> bool:
    """Whether `vmap` of an equation would give other random bits than a loop."""
    name, inputs = eqn.primitive.name, list[Any](eqn.invars)
    takes_key = name in FROM_KEYS and str(inputs[0].aval.dtype) in UNBATCHED_KEYS
    return takes_key or name == "rng_bit_generator"
