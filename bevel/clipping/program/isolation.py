"""Equations that could see other examples, made to see one.

`vmap` asks every equation how it runs for a batch. Most answers of JAX compute each example from
that example alone; the ones below do not, or were written by somebody else. They are rewritten in
the differentiated program, where the rules of custom derivatives have become equations too, at any
depth. What happens to each kind is in docs/clipping.md.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from jax.extend.core.primitives import closed_call_p

from bevel.clipping.program.equations import bind
from bevel.errors import FixLossError
from bevel.sharding.axes import subprograms
from bevel.sharding.source_lines import line_of

# Calls that carry code of the user which is no program yet, and where their function itself is.
FUNCTIONS = {"custom_vmap_call": "_call", "remat_opt": "fwd_jaxpr"}

# Keys whose random bits are the same in a batch as in a loop: threefry2x32 and ChaCha20. For rbg,
# `vmap` draws the bits of all examples from the key of the first one.
INDEPENDENT_KEYS = {"key<fry>", "key<c20>"}
KEY_CASTS = {"random_wrap", "random_unwrap", "random_clone"}


def one_at_a_time(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, in which `vmap` shows no equation more than one example.

    An operation that is put into a loop over the examples loses its parallelism, and JAX can no
    longer differentiate it in reverse.
    """
    return _in_body(program)


def _in_body(body: Any) -> Any:
    """A program, or the programs in a tuple, with their equations rewritten."""
    if isinstance(body, tuple | list):
        bodies = [_in_body(b) for b in body]
        if all(new is old for new, old in zip(bodies, body, strict=True)):
            return body
        return type(body)(*bodies) if hasattr(body, "_fields") else type(body)(bodies)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    jaxpr = body if isinstance(body, Jaxpr) else body.jaxpr
    eqns = [_alone(eqn) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return body
    jaxpr = jaxpr.replace(eqns=eqns)
    return jaxpr if isinstance(body, Jaxpr) else ClosedJaxpr(jaxpr, body.consts)


def _alone(eqn: JaxprEqn) -> JaxprEqn:
    """An equation that computes the same for one example, and sees one in a batch."""
    name = eqn.primitive.name
    if not of_jax(eqn.primitive) or _keeps_memory(eqn) or _draws_from_coupled_keys(eqn):
        return _in_turn(eqn)
    if name == "pallas_call" or (name == "custom_vmap_call" and _sees_one(eqn.params["rule"])):
        return eqn
    if name in FUNCTIONS:
        return _call(eqn, _in_body(eqn.params[FUNCTIONS[name]]))
    if name == "call_hi_primitive":
        return _call(eqn, _in_body(_traced(eqn, _expanded)))
    changed = {key: _in_body(value) for key, value in eqn.params.items()}
    if eqn.params.get("vmap_method") in ("expand_dims", "broadcast_all", "legacy_vectorized"):
        changed["vmap_method"] = "sequential"
    if all(changed[key] is value for key, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=changed)


def _in_turn(eqn: JaxprEqn) -> JaxprEqn:
    """The equation, in a loop over the examples once there are many."""
    return _call(eqn, _traced(eqn, lambda eqn: jax.custom_batching.sequential_vmap(_applied(eqn))))


def _call(eqn: JaxprEqn, body: Any) -> JaxprEqn:
    """A call of `body` in the place of an equation."""
    closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
    return eqn.replace(primitive=closed_call_p, params={"call_jaxpr": closed})


def _traced(eqn: JaxprEqn, make: Callable[[JaxprEqn], Callable[..., Any]]) -> ClosedJaxpr:
    with eqn.ctx.manager:
        return jax.make_jaxpr(make(eqn))(*(v.aval for v in eqn.invars))


def _applied(eqn: JaxprEqn) -> Callable[..., Any]:
    # Whoever evaluates the call has restored the context of the equation, or has replaced it.
    return lambda *inputs: bind(eqn, inputs, in_its_context=False)


def _expanded(eqn: JaxprEqn) -> Callable[..., Any]:
    """What a primitive of `jax.experimental.hijax` is defined as."""
    return lambda *inputs: eqn.primitive.to_lojax(*inputs, **eqn.params)


# The rule of JAX that runs a function in a loop: all functions that it makes share their code.
_SEQUENTIAL = jax.custom_batching.sequential_vmap(lambda x: x).vmap_rule.__code__


def _sees_one(rule: Any) -> bool:
    """Whether a rule of `custom_vmap` is JAX's loop over the examples, or one of bevel's own."""
    function = getattr(rule, "__wrapped__", rule)
    if getattr(function, "__code__", None) is _SEQUENTIAL:
        return True
    return str(getattr(function, "__module__", "")).split(".")[0] == "bevel"


def _keeps_memory(eqn: JaxprEqn) -> bool:
    """Whether a kernel has scratch memory, which stays as it is from one example to the next."""
    return eqn.primitive.name == "pallas_call" and bool(
        eqn.params["grid_mapping"].num_scratch_operands
    )


def _draws_from_coupled_keys(eqn: JaxprEqn) -> bool:
    """Whether `vmap` of an equation would draw other random bits than a loop."""
    name = eqn.primitive.name
    if name == "rng_bit_generator":
        return True
    if not name.startswith("random_") or name in KEY_CASTS:
        return False
    types = {str(getattr(v.aval, "dtype", "")) for v in (*eqn.invars, *eqn.outvars)}
    return any(t.startswith("key<") for t in types - INDEPENDENT_KEYS)


_known: set[Primitive] = set()


def of_jax(primitive: Primitive) -> bool:
    """Whether a primitive is JAX's own: a module of JAX holds it.

    Its batching rule does not tell: a primitive of the user may be registered with one of JAX's.
    """
    if primitive not in _known:  # or JAX has loaded more modules since
        modules = [m for n, m in list(sys.modules.items()) if n.split(".")[0] in ("jax", "jaxlib")]
        for module in modules:
            _known.update(v for v in vars(module).values() if isinstance(v, Primitive))
    return primitive in _known


def refuse_side_effects(program: ClosedJaxpr) -> None:
    """Raises where a program hands examples to something that may carry them to the next one."""
    written = {e for e in program.effects if type(e).__name__ in ("WriteEffect", "AccumEffect")}
    if written:
        places = (_at(eqn) for eqn in program.eqns if written & set(eqn.effects))
        raise FixLossError(
            f"the loss writes to a jax.Ref from outside{next(places, '')}, which all examples "
            "share. Make the ref inside the loss, or return what it should hold as aux "
            "(has_aux=True)."
        )
    _refuse_stateful_calls(program.jaxpr)


def _refuse_stateful_calls(jaxpr: Jaxpr) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "io_callback":
            raise FixLossError(
                f"the loss calls io_callback{_at(eqn)}. Its host function sees the values of single "
                "examples and of padding, in any order, and may carry something from one example "
                "to the next, so no bound would hold. To look at values, return them as aux "
                "(has_aux=True) or use jax.debug.callback; to compute with them, use "
                "jax.pure_callback with a function that remembers nothing."
            )
        if eqn.params.get("has_side_effect") is True:
            raise FixLossError(
                f"the loss calls {name} with has_side_effect=True{_at(eqn)}, so foreign code may "
                "carry something from one example to the next, and no bound would hold. If its "
                "results depend on its inputs alone, leave has_side_effect out."
            )
        for inner in subprograms(eqn.params):
            _refuse_stateful_calls(inner)


def _at(eqn: JaxprEqn) -> str:
    line = line_of(eqn)
    return f", at {line}" if line else ""
