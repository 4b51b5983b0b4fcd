"""Finds every use of a parameter: an equation that combines it with an example.

The program is walked once, through calls, loops and branches. A use is an equation with a norm rule
that takes a view of the parameter (`views.py`) together with values of the example. Where the
operand combines several parameters (`combinations.py`), it is a use of each. A parameter is
supported if all its uses are. JAX itself differentiates every other parameter, which works for any
program and respects custom rules, so no use can be missed.
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
from bevel.clipping.program.equations import REMATS, body_of_call, depends_on, scan_counts
from bevel.clipping.uses.combinations import (
    UnsupportedUseError,
    adds,
    combination_at,
    pull_back_combinations,
    sizes_of,
)
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.views import (
    Combination,
    LoopEntry,
    View,
    loops_of,
    rearranges,
    split_at_combinations,
)


@dataclasses.dataclass(frozen=True)
class Use:
    """A view of parameter number `param` as operand `operand` of `eqn`.

    `path` identifies the equation: the ids of the equations whose bodies contain it, outermost
    first, then its own.
    """

    param: int
    view: View
    eqn: JaxprEqn
    operand: int
    rule: NormRule
    path: tuple[int, ...]
    in_remat: bool  # holding values from here would undo the remat
    in_branch: bool
    combined_sizes: GradientSizes | None = None  # of its gradient, if the view has combinations

    @property
    def loops(self) -> Loops:
        return loops_of(self.view)

    @property
    def leading_view(self) -> View:
        """The view up to the first combination."""
        return split_at_combinations(self.view)[0]

    @property
    def combinations(self) -> list[tuple[Combination, View]]:
        """Each combination with the view that follows it."""
        return split_at_combinations(self.view)[1]

    @property
    def sizes(self) -> GradientSizes:
        return self.combined_sizes or self.rule.sizes(self.eqn, self.operand, self.loops)

    def gradient(self, h: Sequence[Any], g: Any, params: Sequence[Any]) -> Any:
        """The gradient at the end of the leading view, not formed."""
        gradient = self.rule.gradient(self.eqn, self.operand, self.loops, h, g)
        if not self.combinations:
            return gradient
        if not isinstance(gradient, OuterProducts):
            raise UnsupportedUseError
        return pull_back_combinations(self.view, self.combinations, gradient, params)


@dataclasses.dataclass
class _WalkContext:
    """Where the walk is."""

    path: tuple[int, ...] = ()
    in_remat: bool = False
    in_branch: bool = False
    in_loop: bool = False

    def inside(self, eqn: JaxprEqn, branch: int | None = None, **changes: bool) -> "_WalkContext":
        """The context of an equation's body. Branches may share a body, so they are numbered."""
        step = (id(eqn),) if branch is None else (id(eqn), branch)
        return dataclasses.replace(self, path=(*self.path, *step), **changes)


ReachingViews = tuple[tuple[int, View], ...]  # the parameters that reach a value, and their views
ViewsByVariable = dict[Any, ReachingViews]
UsesByParameter = dict[int, list[Use | SharedTerm] | None]


class _DerivedValue(NamedTuple):
    """A value computed from parameters alone that is not a view of them."""

    params: frozenset[int]
    term: SharedTerm | None  # None inside a loop, branch or remat


def find_uses(program: ClosedJaxpr, params: int, constants: int = 0) -> UsesByParameter:
    """The uses of each of the first `params` inputs, or None where a use is not supported.

    The last `constants` inputs are the same for all examples.
    """
    jaxpr = program.jaxpr
    views: ViewsByVariable = {var: ((i, ()),) for i, var in enumerate(jaxpr.invars[:params])}
    uses: UsesByParameter = {i: [] for i in range(params)}
    examples = len(jaxpr.invars) - constants
    dependence = _Dependence(
        depends_on(jaxpr, jaxpr.invars[params:]), depends_on(jaxpr, jaxpr.invars[params:examples])
    )
    derived = _walk(jaxpr, views, dependence, _WalkContext(), uses)
    _mark_unsupported(uses, views, derived, jaxpr.outvars)
    types = [v.aval for v in jaxpr.invars[:params]]
    return {i: own if own is None else _with_sizes(own, types) for i, own in uses.items()}


def _with_sizes(
    uses: list[Use | SharedTerm], params: Sequence[Any]
) -> list[Use | SharedTerm] | None:
    """The uses with the sizes of their gradients, or None if one is not made of outer products."""
    result: list[Use | SharedTerm] = []
    for use in uses:
        if isinstance(use, Use) and use.combinations:
            steps = tuple(length for _, length in use.loops)

            def one(var: Any, lead: tuple[int, ...] = (1, *steps)) -> Any:
                return jax.ShapeDtypeStruct((*lead, *var.aval.shape), var.aval.dtype)

            h = [one(use.eqn.invars[i]) for i in use.rule.others(use.eqn, use.operand)]
            types = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in params]
            try:
                gradient = jax.eval_shape(use.gradient, h, one(use.eqn.outvars[0]), types)
            except UnsupportedUseError:
                return None
            use = dataclasses.replace(use, combined_sizes=sizes_of(gradient))
        result.append(use)
    return result


def without_shared_terms(uses: UsesByParameter) -> UsesByParameter:
    """Leaves parameters in shared terms to JAX, whose types track how each is sharded."""

    def plain(own: list[Use | SharedTerm] | None) -> list[Use | SharedTerm] | None:
        return None if any(isinstance(use, SharedTerm) for use in own or ()) else own

    return {param: plain(own) for param, own in uses.items()}


def outside_remats(uses: UsesByParameter) -> UsesByParameter:
    """The uses as if no remat were around them, for a program that holds their values anyway."""

    def plain(use: Use | SharedTerm) -> Use | SharedTerm:
        return dataclasses.replace(use, in_remat=False) if isinstance(use, Use) else use

    return {param: own and [plain(use) for use in own] for param, own in uses.items()}


class _Dependence(NamedTuple):
    """The variables that depend on inputs other than parameters, and on the example."""

    inputs: Collection[Any]
    example: Collection[Any]


def _walk(
    jaxpr: Jaxpr,
    views: ViewsByVariable,
    dependence: _Dependence,
    context: _WalkContext,
    uses: UsesByParameter,
) -> dict[Any, _DerivedValue]:
    """Adds the uses in a program to `uses`, and the variables that are views to `views`.

    Returns the other values that are computed from parameters alone.
    """
    derived: dict[Any, _DerivedValue] = {}
    for eqn in jaxpr.eqns:
        here = {i: views[v] for i, v in enumerate(eqn.invars) if _is_in(v, views)}
        computed = [v for v in eqn.invars if _is_in(v, derived)]
        if not here and not computed:
            continue
        no_example = not any(_is_in(v, dependence.example) for v in eqn.invars)
        if not computed and rearranges(eqn):
            views[eqn.outvars[0]] = tuple((param, (*view, eqn)) for param, view in here[0])
            continue
        combined = _combine(eqn, here) if no_example and not computed else None
        if combined is not None:
            views[eqn.outvars[0]] = combined
            continue
        params = {param for reaching in here.values() for param, _ in reaching}
        params |= {param for v in computed for param in derived[v].params}
        params_only = not any(_is_in(v, dependence.inputs) for v in eqn.invars)
        if params_only and (computed or not _has_open_body(eqn)):
            for i, var in enumerate(eqn.outvars):
                known = not (context.in_loop or context.in_branch or context.in_remat)
                aval: Any = var.aval
                output = (*context.path, id(eqn)), i
                term = SharedTerm(*output, tuple(aval.shape), aval.dtype) if known else None
                derived[var] = _DerivedValue(frozenset(params), term)
            continue
        for value in computed:
            _add_shared_term(value, derived[value], uses)
        if not here or _enter(eqn, here, views, derived, dependence, context, uses):
            continue
        rule = rule_for(eqn.primitive.name)
        for position, reaching in here.items():
            others = [v for i, v in enumerate(eqn.invars) if i != position]
            with_example = len(here) == 1 and any(_is_in(v, dependence.inputs) for v in others)
            for param, view in reaching:
                if rule is None or not with_example or not rule.accepts(eqn, position):
                    uses[param] = None
                elif (own := uses[param]) is not None:
                    path = (*context.path, id(eqn))
                    flags = context.in_remat, context.in_branch
                    own.append(Use(param, view, eqn, position, rule, path, *flags))
    return derived


def _has_open_body(eqn: JaxprEqn) -> bool:
    """Whether the walk may enter the body of an equation."""
    name = eqn.primitive.name
    return body_of_call(eqn) is not None or name in REMATS or name in ("cond", "scan")


def _add_shared_term(var: Any, derived: _DerivedValue, uses: UsesByParameter) -> None:
    """Marks a value of parameters alone that an example uses: a scalar is a shared term."""
    for param in derived.params:
        own = uses[param]
        if derived.term is None or not _is_scalar(var):
            uses[param] = None
        elif own is not None and derived.term not in own:
            own.append(derived.term)


def _combine(eqn: JaxprEqn, here: dict[int, ReachingViews]) -> ReachingViews | None:
    """The views of an equation's output, or None if the equation is not a combination."""
    result: list[tuple[int, View]] = []
    if _is_scalar(eqn.outvars[0]):
        return None  # a shared term
    for position, reaching in here.items():
        if adds(eqn, position):
            result += reaching
            continue
        others = [own for i, own in here.items() if i != position]
        other = others[0][0] if len(others) == 1 and len(others[0]) == 1 else None
        combination = combination_at(eqn, position, other)
        if combination is None:
            return None
        result += [(param, (*view, combination)) for param, view in reaching]
    return tuple(result)


def _enter(
    eqn: JaxprEqn,
    here: dict[int, ReachingViews],
    views: ViewsByVariable,
    derived: dict[Any, _DerivedValue],
    dependence: _Dependence,
    context: _WalkContext,
    uses: UsesByParameter,
) -> bool:
    """Walks the body of an equation. Returns False if it has no body that can be entered."""
    name = eqn.primitive.name
    dependent = [{i for i, v in enumerate(eqn.invars) if _is_in(v, own)} for own in dependence]

    def walk_body(
        body: Jaxpr,
        inputs: dict[int, ReachingViews],
        dependent: Sequence[Iterable[int]],
        branch: int | None = None,
    ) -> tuple[ViewsByVariable, dict[Any, _DerivedValue]]:
        inner = {body.invars[i]: reaching for i, reaching in inputs.items()}
        varying = _Dependence(
            *(depends_on(body, [body.invars[i] for i in own]) for own in dependent)
        )
        return inner, _walk(body, inner, varying, context.inside(eqn, branch, **flags), uses)

    flags: dict[str, bool] = {}
    call = body_of_call(eqn)
    if call is not None and not _has_shardings(eqn):
        inner, computed = walk_body(call.jaxpr, here, dependent)
        for outer, var in zip(eqn.outvars, call.jaxpr.outvars, strict=True):
            if _is_in(var, inner):
                views[outer] = inner[var]
            elif _is_in(var, computed):
                derived[outer] = computed[var]
        return True
    if name in REMATS:
        flags["in_remat"] = True
        body = eqn.params["jaxpr"]
        _mark_unsupported(uses, *walk_body(body, here, dependent), body.outvars)
        return True
    if name == "cond":
        flags["in_branch"] = True
        inputs = {i - 1: reaching for i, reaching in here.items()}
        dependent = [{i - 1 for i in own if i > 0} for own in dependent]
        for k, branch in enumerate(eqn.params["branches"]):
            inside = walk_body(branch.jaxpr, inputs, dependent, k)
            _mark_unsupported(uses, *inside, branch.jaxpr.outvars)
        return True
    if name == "scan" and eqn.params["length"] > 0:
        consts, carry = scan_counts(eqn)
        body, length = _scan_body(eqn), eqn.params["length"]
        _mark_unsupported(uses, views, derived, eqn.invars[consts : consts + carry])
        entries = {i: LoopEntry(SHARED if i < consts else SEPARATE, length) for i in here}
        inputs = {
            i: tuple((param, (*view, entries[i])) for param, view in reaching)
            for i, reaching in here.items()
            if not consts <= i < consts + carry
        }
        carried = set(range(consts, consts + carry))
        dependent = [own | carried if own else own for own in dependent]
        flags["in_loop"] = True
        _mark_unsupported(uses, *walk_body(body, inputs, dependent), body.outvars)
        return True
    return False


def _scan_body(eqn: JaxprEqn) -> Jaxpr:
    body = eqn.params["jaxpr"]
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def _has_shardings(eqn: JaxprEqn) -> bool:
    """Whether a nested jit has in_shardings or out_shardings."""
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return any(isinstance(s, Sharding) for s in shardings)


def _mark_unsupported(
    uses: UsesByParameter,
    views: ViewsByVariable,
    derived: dict[Any, _DerivedValue],
    variables: Sequence[Any],
) -> None:
    """Marks the parameters that reach one of `variables`: they have a use without a rule."""
    for var in variables:
        for param in derived[var].params if _is_in(var, derived) else ():
            uses[param] = None
        for param, _ in views[var] if _is_in(var, views) else ():
            uses[param] = None


def _is_scalar(var: Any) -> bool:
    """Whether a variable is one floating-point number."""
    return math.prod(var.aval.shape) == 1 and bool(jnp.issubdtype(var.aval.dtype, jnp.floating))


def _is_in(var: Any, collection: Any) -> bool:
    return not isinstance(var, Literal) and var in collection
