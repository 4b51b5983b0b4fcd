"""Rewrites equations whose batching rule could let one example see others, or that have none.

`vmap` runs every equation by its batching rule. Most of JAX's rules compute each example from that
example alone. The equations below have a rule that does not, a rule that is not JAX's own, or no
rule. They are rewritten at any depth of the differentiated program, where the rules of custom
derivatives have become equations too. docs/clipping.md says what happens to each kind.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from jax.extend.core.primitives import closed_call_p

from bevel.clipping.program.equations import bind
from bevel.clipping.program.example_convolutions import by_products, needs_products
from bevel.clipping.program.missing_rules import has_batching_rule
from bevel.errors import FixLossError
from bevel.sharding.axes import subprograms
from bevel.sharding.source_lines import keep_line, line_of

# Calls with a user's rule that is not traced yet, and the parameter that holds their function.
FUNCTIONS = {"custom_vmap_call": "call", "remat_opt": "fwd_jaxpr"}

# Methods of callbacks and foreign calls that call the function once for each example.
SEQUENTIAL_METHODS = ("sequential", "sequential_unrolled")

# Key types whose random bits are the same in a batch as in a loop: threefry2x32 and ChaCha20. For
# rbg, `vmap` draws the bits of all examples from the key of the first one.
INDEPENDENT_KEYS = {"key<fry>", "key<c20>"}
KEY_CASTS = {"random_wrap", "random_unwrap", "random_clone"}


def isolate_examples(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, rewritten so that under `vmap` every equation sees one example at a time.

    An operation that is run in a loop over the examples loses its parallelism, and JAX can no
    longer differentiate it in reverse mode.
    """
    return _isolate_body(program)


def _isolate_body(body: Any) -> Any:
    """Rewrites the equations of a program, or of the programs in a tuple."""
    if isinstance(body, tuple | list):
        bodies = [_isolate_body(b) for b in body]
        if all(new is old for new, old in zip(bodies, body, strict=True)):
            return body
        return type(body)(*bodies) if hasattr(body, "_fields") else type(body)(bodies)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    jaxpr = body if isinstance(body, Jaxpr) else body.jaxpr
    eqns = [_isolate_equation(eqn) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return body
    jaxpr = jaxpr.replace(eqns=eqns)
    return jaxpr if isinstance(body, Jaxpr) else ClosedJaxpr(jaxpr, body.consts)


def _isolate_equation(eqn: JaxprEqn) -> JaxprEqn:
    """An equation that computes the same for one example, and isolates the examples of a batch."""
    name = eqn.primitive.name
    if (
        not is_jax_primitive(eqn.primitive)
        or _has_scratch_memory(eqn)
        or _draws_from_coupled_keys(eqn)
        or not has_batching_rule(eqn)
    ):
        return _in_loop(eqn)
    if needs_products(eqn):
        return _call(eqn, _traced(eqn, by_products))
    if name == "pallas_call" or (name == "custom_vmap_call" and _isolates(eqn)):
        return eqn
    if name in FUNCTIONS:
        return _call(eqn, _isolate_body(eqn.params[FUNCTIONS[name]]))
    if name == "call_hi_primitive":
        return _call(eqn, _isolate_body(_traced(eqn, _expanded)))
    changed = {key: _isolate_body(value) for key, value in eqn.params.items()}
    if "vmap_method" in eqn.params and eqn.params["vmap_method"] not in SEQUENTIAL_METHODS:
        changed["vmap_method"] = "sequential"
    if all(changed[key] is value for key, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=changed)


def _in_loop(eqn: JaxprEqn) -> JaxprEqn:
    """The equation, which `vmap` then runs in a loop over the examples."""
    return _call(eqn, _traced(eqn, lambda eqn: jax.custom_batching.sequential_vmap(_applied(eqn))))


def _call(eqn: JaxprEqn, body: Any) -> JaxprEqn:
    """Replaces an equation by a call of `body`."""
    closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
    return eqn.replace(primitive=closed_call_p, params={"call_jaxpr": closed})


def _traced(eqn: JaxprEqn, make: Callable[[JaxprEqn], Callable[..., Any]]) -> ClosedJaxpr:
    with eqn.ctx.manager, keep_line(eqn):
        return jax.make_jaxpr(make(eqn))(*(v.aval for v in eqn.invars))


def _applied(eqn: JaxprEqn) -> Callable[..., Any]:
    # The caller restores or replaces the context of the equation.
    return lambda *inputs: bind(eqn, inputs, in_its_context=False)


def _expanded(eqn: JaxprEqn) -> Callable[..., Any]:
    """The definition of a `jax.experimental.hijax` primitive."""
    return lambda *inputs: eqn.primitive.to_lojax(*inputs, **eqn.params)


# JAX's rule that runs a function in a loop. All functions made by it share this code object.
_SEQUENTIAL = jax.custom_batching.sequential_vmap(lambda x: x).vmap_rule.__code__


def is_sequential(eqn: JaxprEqn) -> bool:
    """Whether an equation is a `custom_vmap` whose rule is JAX's loop over the examples."""
    if eqn.primitive.name != "custom_vmap_call":
        return False
    rule = eqn.params["rule"]
    return getattr(getattr(rule, "__wrapped__", rule), "__code__", None) is _SEQUENTIAL


def _isolates(eqn: JaxprEqn) -> bool:
    """Whether the rule of a `custom_vmap` is JAX's loop over the examples, or bevel's own."""
    if is_sequential(eqn):
        return True
    rule = eqn.params["rule"]
    module = getattr(getattr(rule, "__wrapped__", rule), "__module__", "")
    return str(module).split(".")[0] == "bevel"


def _has_scratch_memory(eqn: JaxprEqn) -> bool:
    """Whether an equation is a kernel with scratch memory, which persists between examples."""
    return eqn.primitive.name == "pallas_call" and bool(
        eqn.params["grid_mapping"].num_scratch_operands
    )


def _draws_from_coupled_keys(eqn: JaxprEqn) -> bool:
    """Whether `vmap` of an equation would draw different random bits than a loop."""
    name = eqn.primitive.name
    if name == "rng_bit_generator":
        return True
    if not name.startswith("random_") or name in KEY_CASTS:
        return False
    types = {str(getattr(v.aval, "dtype", "")) for v in (*eqn.invars, *eqn.outvars)}
    return any(t.startswith("key<") for t in types - INDEPENDENT_KEYS)


_jax_primitives: set[Primitive] = set()


def is_jax_primitive(primitive: Primitive) -> bool:
    """Whether a primitive is JAX's own: an attribute of one of JAX's modules.

    The batching rule does not tell, because a user's primitive may be registered with JAX's rule.
    """
    if primitive not in _jax_primitives:  # JAX may have loaded more modules since the last call
        modules = [m for n, m in list(sys.modules.items()) if n.split(".")[0] in ("jax", "jaxlib")]
        for module in modules:
            _jax_primitives.update(v for v in vars(module).values() if isinstance(v, Primitive))
    return primitive in _jax_primitives


def refuse_side_effects(program: ClosedJaxpr) -> None:
    """Raises if a program has side effects that could carry one example's values to another."""
    written = {e for e in program.effects if type(e).__name__ in ("WriteEffect", "AccumEffect")}
    if written:
        places = (_at(eqn) for eqn in program.eqns if written & set(eqn.effects))
        raise FixLossError(
            f"the loss writes to a jax.Ref from outside{next(places, '')}. All examples share "
            "that ref. Create it inside the loss, or return its value as aux (has_aux=True)."
        )
    _refuse_stateful_calls(program.jaxpr)


def _refuse_stateful_calls(jaxpr: Jaxpr) -> None:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "io_callback":
            raise FixLossError(
                f"the loss calls io_callback{_at(eqn)}. Its host function may carry values from "
                "one example to another, so no sensitivity bound would hold. To inspect values, "
                "return them as aux (has_aux=True) or use jax.debug.callback. To compute with "
                "them, use jax.pure_callback with a stateless function."
            )
        if eqn.params.get("has_side_effect") is True:
            raise FixLossError(
                f"the loss calls {name} with has_side_effect=True{_at(eqn)}. The foreign code may "
                "carry values from one example to another, so no sensitivity bound would hold. If "
                "its results depend only on its inputs, leave has_side_effect out."
            )
        for inner in subprograms(eqn.params):
            _refuse_stateful_calls(inner)


def _at(eqn: JaxprEqn) -> str:
    line = line_of(eqn)
    return f", at {line}" if line else ""
