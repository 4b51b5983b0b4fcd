"""Uses: every place where a parameter meets an example, through calls, loops and branches.

The program is walked once. A use is an equation with a norm rule that takes a parameter, or a
rearranged part of it (`routes.py`), beside values of the example. A parameter is understood if each
of its uses is; every other parameter is differentiated by JAX itself, through any program and by
every custom rule, so there is nothing to support or to miss.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import Sharding

from bevel.clipping.equations import body_of_call, depends_on, scan_counts
from bevel.clipping.norms import Rule, rule_for
from bevel.clipping.norms.registry import SEPARATE, SHARED, Loops
from bevel.clipping.routes import Entry, Route, loops_of, passes_on

REMATS = {"remat2", "checkpoint", "remat"}


@dataclasses.dataclass(frozen=True)
class Use:
    """Parameter number `param`, by `route`, as operand `operand` of `eqn`.

    `path` names the equation: itself and those whose bodies it stands in, the outermost first.
    """

    param: int
    route: Route
    eqn: JaxprEqn
    operand: int
    rule: Rule
    path: tuple[int, ...]
    recomputed: bool  # within a remat: values kept from here would undo it
    branched: bool  # within a branch

    @property
    def loops(self) -> Loops:
        return loops_of(self.route)


@dataclasses.dataclass
class Inside:
    """Where the walk is."""

    path: tuple[int, ...] = ()
    recomputed: bool = False
    branched: bool = False

    def of(self, eqn: JaxprEqn, branch: int | None = None, **changes: bool) -> "Inside":
        """Within the body of an equation; branches may share one."""
        place = (id(eqn),) if branch is None else (id(eqn), branch)
        return dataclasses.replace(self, path=(*self.path, *place), **changes)


Reached = dict[Any, tuple[int, Route]]
Found = dict[int, list[Use] | None]


def find_uses(program: ClosedJaxpr, params: int) -> Found:
    """The uses of each of the first `params` inputs; None where one is not understood."""
    jaxpr = program.jaxpr
    reached: Reached = {var: (i, ()) for i, var in enumerate(jaxpr.invars[:params])}
    found: Found = {i: [] for i in range(params)}
    batched = depends_on(jaxpr, jaxpr.invars[params:])
    walk(jaxpr, reached, batched, Inside(), found)
    opaque(found, reached, jaxpr.outvars)
    return found


def walk(
    jaxpr: Jaxpr, reached: Reached, batched: Collection[Any], inside: Inside, found: Found
) -> None:
    """Adds the uses in a program to `found`; `reached` grows by what parameters are passed to."""
    for eqn in jaxpr.eqns:
        here = {i: reached[v] for i, v in enumerate(eqn.invars) if is_in(v, reached)}
        if not here:
            continue
        if passes_on(eqn):
            param, route = here[0]
            reached[eqn.outvars[0]] = (param, (*route, eqn))
            continue
        if enter(eqn, here, reached, batched, inside, found):
            continue
        rule = rule_for(eqn.primitive.name)
        for position, (param, route) in here.items():
            others = [v for i, v in enumerate(eqn.invars) if i != position]
            meets = len(here) == 1 and any(is_in(v, batched) for v in others)
            if rule is None or not meets or not rule.accepts(eqn, position):
                found[param] = None
            elif (uses := found[param]) is not None:
                use = Use(
                    param,
                    route,
                    eqn,
                    position,
                    rule,
                    (*inside.path, id(eqn)),
                    inside.recomputed,
                    inside.branched,
                )
                uses.append(use)


def enter(
    eqn: JaxprEqn,
    here: dict[int, tuple[int, Route]],
    reached: Reached,
    batched: Collection[Any],
    inside: Inside,
    found: Found,
) -> bool:
    """Walks the body of an equation that has one. False if it has none that can be opened."""
    name = eqn.primitive.name
    at_batch = {i for i, v in enumerate(eqn.invars) if is_in(v, batched)}

    def into(
        body: Jaxpr,
        inputs: dict[int, tuple[int, Route]],
        dependent: Iterable[int],
        branch: int | None = None,
    ) -> Reached:
        inner = {body.invars[i]: place for i, place in inputs.items()}
        varying = depends_on(body, [body.invars[i] for i in dependent])
        walk(body, inner, varying, inside.of(eqn, branch, **flags), found)
        return inner

    flags: dict[str, bool] = {}
    call = body_of_call(eqn)
    if call is not None and not asks_for_places(eqn):
        inner = into(call.jaxpr, here, at_batch)
        for outer, var in zip(eqn.outvars, call.jaxpr.outvars, strict=True):
            if is_in(var, inner):
                reached[outer] = inner[var]
        return True
    if name in REMATS:
        flags["recomputed"] = True
        body = eqn.params["jaxpr"]
        opaque(found, into(body, here, at_batch), body.outvars)
        return True
    if name == "cond":
        flags["branched"] = True
        inputs = {i - 1: place for i, place in here.items()}
        for k, branch in enumerate(eqn.params["branches"]):
            inner = into(branch.jaxpr, inputs, [i - 1 for i in at_batch if i > 0], k)
            opaque(found, inner, branch.jaxpr.outvars)
        return True
    if name == "scan" and eqn.params["length"] > 0:
        consts, carry = scan_counts(eqn)
        body, length = scan_body(eqn), eqn.params["length"]
        opaque(found, reached, eqn.invars[consts : consts + carry])
        inputs = {
            i: (param, (*route, Entry(SHARED if i < consts else SEPARATE, length)))
            for i, (param, route) in here.items()
            if not consts <= i < consts + carry
        }
        dependent = at_batch | set(range(consts, consts + carry)) if at_batch else at_batch
        opaque(found, into(body, inputs, dependent), body.outvars)
        return True
    return False


def scan_body(eqn: JaxprEqn) -> Jaxpr:
    body = eqn.params["jaxpr"]
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def asks_for_places(eqn: JaxprEqn) -> bool:
    """Whether a nested jit says where its arguments or results lie."""
    given = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return any(isinstance(s, Sharding) for s in given)


def opaque(found: Found, reached: Reached, variables: Sequence[Any]) -> None:
    """Parameters that reach one of `variables` have a use that is not understood."""
    for var in variables:
        if is_in(var, reached):
            found[reached[var][0]] = None


def is_in(var: Any, collection: Any) -> bool:
    return not isinstance(var, Literal) and var in collection
