"""Uses: every place where a parameter meets an example, through calls, loops and branches.

The program is walked once. A use is an equation with a norm rule that takes a parameter, or a
rearranged part of it (`views.py`), beside values of the example; the operand may be made of
several parameters (`combinations.py`), and is then a use of each. A parameter is understood if each
of its uses is; every other parameter is differentiated by JAX itself, through any program and by
every custom rule, so there is nothing to support or to miss.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import Sharding

from bevel.clipping.norms import NormRule, rule_for
from bevel.clipping.norms.outer_products import OuterProducts
from bevel.clipping.norms.registry import SEPARATE, SHARED, GradientSizes, Loops
from bevel.clipping.program.equations import body_of_call, depends_on, scan_counts
from bevel.clipping.uses.combinations import (
    NotUnderstoodError,
    adds,
    combination_at,
    pull_back_combinations,
    sizes_of,
)
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.views import Combination, LoopEntry, View, loops_of, passes_on, split

REMATS = {"remat2", "checkpoint", "remat"}


@dataclasses.dataclass(frozen=True)
class Use:
    """Parameter number `param`, by `route`, as operand `operand` of `eqn`.

    `path` names the equation: itself and those whose bodies it stands in, the outermost first.
    """

    param: int
    route: View
    eqn: JaxprEqn
    operand: int
    rule: NormRule
    path: tuple[int, ...]
    recomputed: bool  # within a remat: values kept from here would undo it
    branched: bool  # within a branch
    behind_turns: GradientSizes | None = None  # of its gradient, if there are turns

    @property
    def loops(self) -> Loops:
        return loops_of(self.route)

    @property
    def start(self) -> View:
        """The route up to the first turn."""
        return split(self.route)[0]

    @property
    def turns(self) -> list[tuple[Combination, View]]:
        return split(self.route)[1]

    @property
    def sizes(self) -> GradientSizes:
        return self.behind_turns or self.rule.sizes(self.eqn, self.operand, self.loops)

    def gradient(self, h: Sequence[Any], g: Any, params: Sequence[Any]) -> Any:
        """With respect to what the route has before its first turn, not formed."""
        found = self.rule.gradient(self.eqn, self.operand, self.loops, h, g)
        if not self.turns:
            return found
        if not isinstance(found, OuterProducts):
            raise NotUnderstoodError
        return pull_back_combinations(self.route, self.turns, found, params)


@dataclasses.dataclass
class _WalkContext:
    """Where the walk is."""

    path: tuple[int, ...] = ()
    recomputed: bool = False
    branched: bool = False
    looped: bool = False

    def of(self, eqn: JaxprEqn, branch: int | None = None, **changes: bool) -> "_WalkContext":
        """Within the body of an equation; branches may share one."""
        place = (id(eqn),) if branch is None else (id(eqn), branch)
        return dataclasses.replace(self, path=(*self.path, *place), **changes)


ReachingViews = tuple[tuple[int, View], ...]  # parameters, and how they came here
Reached = dict[Any, ReachingViews]
UsesByParameter = dict[int, list[Use | SharedTerm] | None]


class _DerivedValue(NamedTuple):
    """A value that parameters alone make up, in some other way than by a route."""

    params: frozenset[int]
    common: SharedTerm | None  # where it comes from, unless that is within a loop or a branch


def find_uses(program: ClosedJaxpr, params: int, constants: int = 0) -> UsesByParameter:
    """The uses of each of the first `params` inputs; None where one is not understood.

    `constants`: so many inputs, the last ones, are the same for all examples.
    """
    jaxpr = program.jaxpr
    reached: Reached = {var: ((i, ()),) for i, var in enumerate(jaxpr.invars[:params])}
    found: UsesByParameter = {i: [] for i in range(params)}
    examples = len(jaxpr.invars) - constants
    batched = _Dependence(
        depends_on(jaxpr, jaxpr.invars[params:]), depends_on(jaxpr, jaxpr.invars[params:examples])
    )
    derived = _walk(jaxpr, reached, batched, _WalkContext(), found)
    _opaque(found, reached, derived, jaxpr.outvars)
    types = [v.aval for v in jaxpr.invars[:params]]
    return {i: uses if uses is None else _understood(uses, types) for i, uses in found.items()}


def _understood(
    uses: list[Use | SharedTerm], params: Sequence[Any]
) -> list[Use | SharedTerm] | None:
    """The uses with the sizes of their gradients, or None if one is not made of outer products."""
    result: list[Use | SharedTerm] = []
    for use in uses:
        if isinstance(use, Use) and use.turns:
            steps = tuple(length for _, length in use.loops)

            def one(var: Any, lead: tuple[int, ...] = (1, *steps)) -> Any:
                return jax.ShapeDtypeStruct((*lead, *var.aval.shape), var.aval.dtype)

            h = [one(use.eqn.invars[i]) for i in use.rule.others(use.eqn, use.operand)]
            plain = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in params]
            try:
                found = jax.eval_shape(use.gradient, h, one(use.eqn.outvars[0]), plain)
            except NotUnderstoodError:
                return None
            use = dataclasses.replace(use, behind_turns=sizes_of(found))
        result.append(use)
    return result


def without_common(found: UsesByParameter) -> UsesByParameter:
    """The same, parameters in common terms left to JAX, whose types say where each of them lies."""

    def plain(uses: list[Use | SharedTerm] | None) -> list[Use | SharedTerm] | None:
        return None if any(isinstance(use, SharedTerm) for use in uses or ()) else uses

    return {param: plain(uses) for param, uses in found.items()}


class _Dependence(NamedTuple):
    """Variables that depend on other inputs than parameters, and those that do on the example."""

    given: Collection[Any]
    example: Collection[Any]


def _walk(
    jaxpr: Jaxpr,
    reached: Reached,
    batched: _Dependence,
    inside: _WalkContext,
    found: UsesByParameter,
) -> dict[Any, _DerivedValue]:
    """Adds the uses in a program to `found`; `reached` grows by what parameters are passed to.

    Gives what parameters alone make up.
    """
    derived: dict[Any, _DerivedValue] = {}
    for eqn in jaxpr.eqns:
        here = {i: reached[v] for i, v in enumerate(eqn.invars) if _is_in(v, reached)}
        computed = [v for v in eqn.invars if _is_in(v, derived)]
        if not here and not computed:
            continue
        free = not any(_is_in(v, batched.example) for v in eqn.invars)
        if not computed and passes_on(eqn):
            reached[eqn.outvars[0]] = tuple((param, (*route, eqn)) for param, route in here[0])
            continue
        joined = _join(eqn, here) if free and not computed else None
        if joined is not None:
            reached[eqn.outvars[0]] = joined
            continue
        own = {p for places in here.values() for p, _ in places}
        own |= {p for v in computed for p in derived[v].params}
        alone = not any(_is_in(v, batched.given) for v in eqn.invars)
        if alone and (computed or not _opens(eqn)):
            for i, var in enumerate(eqn.outvars):
                known = not (inside.looped or inside.branched or inside.recomputed)
                aval: Any = var.aval
                place = (*inside.path, id(eqn)), i
                source = SharedTerm(*place, tuple(aval.shape), aval.dtype) if known else None
                derived[var] = _DerivedValue(frozenset(own), source)
            continue
        for value in computed:
            _meet(value, derived[value], found)
        if not here or _enter(eqn, here, reached, derived, batched, inside, found):
            continue
        rule = rule_for(eqn.primitive.name)
        for position, places in here.items():
            others = [v for i, v in enumerate(eqn.invars) if i != position]
            meets = len(here) == 1 and any(_is_in(v, batched.given) for v in others)
            for param, route in places:
                if rule is None or not meets or not rule.accepts(eqn, position):
                    found[param] = None
                elif (uses := found[param]) is not None:
                    path = (*inside.path, id(eqn))
                    flags = inside.recomputed, inside.branched
                    uses.append(Use(param, route, eqn, position, rule, path, *flags))
    return derived


def _opens(eqn: JaxprEqn) -> bool:
    """Whether the walk may go into an equation."""
    name = eqn.primitive.name
    return body_of_call(eqn) is not None or name in REMATS or name in ("cond", "scan")


def _meet(var: Any, derived: _DerivedValue, found: UsesByParameter) -> None:
    """An example meets a value that parameters alone make up: a number is a common term."""
    for param in derived.params:
        uses = found[param]
        if derived.common is None or not _single(var):
            found[param] = None
        elif uses is not None and derived.common not in uses:
            uses.append(derived.common)


def _join(eqn: JaxprEqn, here: dict[int, ReachingViews]) -> ReachingViews | None:
    """Where an equation takes the parameters at its inputs, if none of them is lost there."""
    result: list[tuple[int, View]] = []
    if _single(eqn.outvars[0]):
        return None  # a common term
    for position, places in here.items():
        if adds(eqn, position):
            result += places
            continue
        others = [own for i, own in here.items() if i != position]
        alone = others[0][0] if len(others) == 1 and len(others[0]) == 1 else None
        turn = combination_at(eqn, position, alone)
        if turn is None:
            return None
        result += [(param, (*route, turn)) for param, route in places]
    return tuple(result)


def _enter(
    eqn: JaxprEqn,
    here: dict[int, ReachingViews],
    reached: Reached,
    derived: dict[Any, _DerivedValue],
    batched: _Dependence,
    inside: _WalkContext,
    found: UsesByParameter,
) -> bool:
    """Walks the body of an equation that has one. False if it has none that can be opened."""
    name = eqn.primitive.name
    at_batch = [{i for i, v in enumerate(eqn.invars) if _is_in(v, own)} for own in batched]

    def into(
        body: Jaxpr,
        inputs: dict[int, ReachingViews],
        dependent: Sequence[Iterable[int]],
        branch: int | None = None,
    ) -> tuple[Reached, dict[Any, _DerivedValue]]:
        inner = {body.invars[i]: places for i, places in inputs.items()}
        varying = _Dependence(
            *(depends_on(body, [body.invars[i] for i in own]) for own in dependent)
        )
        return inner, _walk(body, inner, varying, inside.of(eqn, branch, **flags), found)

    flags: dict[str, bool] = {}
    call = body_of_call(eqn)
    if call is not None and not _asks_for_places(eqn):
        inner, made = into(call.jaxpr, here, at_batch)
        for outer, var in zip(eqn.outvars, call.jaxpr.outvars, strict=True):
            if _is_in(var, inner):
                reached[outer] = inner[var]
            elif _is_in(var, made):
                derived[outer] = made[var]
        return True
    if name in REMATS:
        flags["recomputed"] = True
        body = eqn.params["jaxpr"]
        _opaque(found, *into(body, here, at_batch), body.outvars)
        return True
    if name == "cond":
        flags["branched"] = True
        inputs = {i - 1: places for i, places in here.items()}
        dependent = [{i - 1 for i in own if i > 0} for own in at_batch]
        for k, branch in enumerate(eqn.params["branches"]):
            _opaque(found, *into(branch.jaxpr, inputs, dependent, k), branch.jaxpr.outvars)
        return True
    if name == "scan" and eqn.params["length"] > 0:
        consts, carry = scan_counts(eqn)
        body, length = _scan_body(eqn), eqn.params["length"]
        _opaque(found, reached, derived, eqn.invars[consts : consts + carry])
        entries = {i: LoopEntry(SHARED if i < consts else SEPARATE, length) for i in here}
        inputs = {
            i: tuple((param, (*route, entries[i])) for param, route in places)
            for i, places in here.items()
            if not consts <= i < consts + carry
        }
        carried = set(range(consts, consts + carry))
        dependent = [own | carried if own else own for own in at_batch]
        flags["looped"] = True
        _opaque(found, *into(body, inputs, dependent), body.outvars)
        return True
    return False


def _scan_body(eqn: JaxprEqn) -> Jaxpr:
    body = eqn.params["jaxpr"]
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def _asks_for_places(eqn: JaxprEqn) -> bool:
    """Whether a nested jit says where its arguments or results lie."""
    given = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return any(isinstance(s, Sharding) for s in given)


def _opaque(
    found: UsesByParameter,
    reached: Reached,
    derived: dict[Any, _DerivedValue],
    variables: Sequence[Any],
) -> None:
    """Parameters that reach one of `variables` have a use that is not understood."""
    for var in variables:
        for param in derived[var].params if _is_in(var, derived) else ():
            found[param] = None
        for param, _ in reached[var] if _is_in(var, reached) else ():
            found[param] = None


def _single(var: Any) -> bool:
    """Whether a variable is one number."""
    return math.prod(var.aval.shape) == 1 and bool(jnp.issubdtype(var.aval.dtype, jnp.floating))


def _is_in(var: Any, collection: Any) -> bool:
    return not isinstance(var, Literal) and var in collection
