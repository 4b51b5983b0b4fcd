"""Chooses, for each parameter, how its norm and its sum are computed: by cost and by slack."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bevel.checks import in_one_line
from bevel.clipping.norms import gram
from bevel.clipping.norms.costs import NormCost, costs_of
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.uses.find import Use, UsesByParameter
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.views import covers, dimensions, disjoint, itemsize_in_loop
from bevel.errors import FixArgumentsError
from bevel.sharding.types import on_one_device

# A materialised gradient may take this many times the memory of the values it is made of, by
# platform and bytes per number. In float32 a GPU has no kernels for the other ways.
MATERIALISED_MEMORY: Mapping[str, Mapping[int, float]] = {
    "gpu": {2: 1.15, 4: 1.25, 8: 1.25},
    "tpu": {2: 1.0, 4: 1.0, 8: 1.0},
    "cpu": {2: 2.0, 4: 2.0, 8: 2.0},
}
# On a CPU, that of a convolution is also copied once, into the order of its kernel.
CONVOLUTION_MEMORY = 1.5
SMALL = 2**14  # gradients with fewer elements may always be materialised


@dataclasses.dataclass(frozen=True)
class NormChoice:
    """What was chosen for one parameter, and why."""

    param: int
    way: str
    costs: Mapping[str, NormCost]  # for one example, of each way that is possible
    uses: tuple[Use, ...] | None  # None: not supported, so differentiated by JAX
    overlapping: bool = False  # uses share elements, so their gradients add before the norm
    why: str = "the cheapest"
    shared_terms: tuple[SharedTerm, ...] = ()  # terms that are the same for every example


def choose(
    found: UsesByParameter,
    types: Sequence[Any],
    requested: str | Mapping[str, str],
    paths: Sequence[str],
    placed: bool = False,
) -> list[NormChoice]:
    """Chooses a way for each parameter.

    Args:
      found: the uses of each parameter.
      types: the type of each parameter.
      requested: a way that every parameter takes if it can, or ways by path, which must be
        possible.
      paths: the path of each parameter.
      placed: whether the program says how its values are sharded.
    """
    by_path = requested if isinstance(requested, Mapping) else {}
    for part in by_path:
        if not any(part in path for path in paths):
            raise FixArgumentsError(
                f"norms names {part!r}, but no parameter has that in its path. Use a part of "
                f"one of these: {in_one_line(', '.join(paths))}."
            )
    choices = []
    for i, aval in enumerate(types):
        own = [way for part, way in by_path.items() if part in paths[i] and way != "auto"]
        choice = choose_one(i, found[i], aval, own[-1] if own else requested, placed)
        if own and choice.way != own[-1]:
            reason = f" ({choice.why})" if choice.uses is None else ""
            raise FixArgumentsError(
                f"norms asks for {own[-1]!r} for {paths[i]}, which is not possible there{reason}: "
                f"write one of {', '.join(choice.costs) or 'keep'}, or 'auto'."
            )
        choices.append(choice)
    return choices


def choose_one(
    param: int,
    found: Sequence[Use | SharedTerm] | None,
    aval: Any,
    requested: Any = None,
    placed: bool = False,
) -> NormChoice:
    """Chooses the way of one parameter. `found` is None if a use is not supported."""
    if not found:
        why = "not used" if found is not None else "a use without a rule"
        return NormChoice(param, "keep", {}, None, why=why)
    uses = [use for use in found if isinstance(use, Use)]
    shared_terms = tuple(use for use in found if isinstance(use, SharedTerm))
    overlap = overlap_of_uses(uses, aval.shape)
    if overlap is None:
        return NormChoice(param, "keep", {}, None, why="overlapping uses of different shape")
    if shared_terms and (not uses or any(use.combinations for use in uses)):
        return NormChoice(param, "keep", {}, None, why="the same for every example")
    avals: list[Any] = [use.eqn.outvars[0].aval for use in uses]
    itemsize = max(2, *(np.dtype(a.dtype).itemsize for a in avals))
    overlapping = overlap == "overlapping"
    costs = _costs(uses, len(shared_terms), aval.shape, overlapping, itemsize)
    choice = NormChoice(param, "keep", costs, tuple(uses), overlapping, shared_terms=shared_terms)
    if isinstance(requested, str) and requested in costs:
        return dataclasses.replace(choice, way=requested, why="asked for")
    allowed = _within_memory(uses, costs, itemsize, placed)
    precise = {way: cost for way, cost in allowed.items() if cost.slack <= gram.WORST_SLACK}
    if not precise:
        way = min(allowed, key=lambda w: allowed[w].slack)
        return dataclasses.replace(choice, way=way, why="the least slack")
    return dataclasses.replace(choice, way=min(precise, key=lambda w: precise[w].time(itemsize)))


def _costs(
    uses: Sequence[Use], shared_terms: int, shape: Sequence[int], overlapping: bool, itemsize: int
) -> dict[str, NormCost]:
    """The costs of the ways that these uses allow."""
    costs = costs_of([use.sizes for use in uses], overlapping, itemsize)
    if not (_formable(uses, shape) or all(use.sizes.pixels for use in uses)):
        costs.pop("form", None)
    keep = costs["keep"]
    if any(kind == SEPARATE for use in uses for kind, _ in use.loops):
        # A loop stacks its gradients in the dtype of what it reads, layer by layer: they are copied
        # to lie example by example. A CPU widens the values at taps as well.
        on_cpu = jax.default_backend() == "cpu"
        wide = itemsize if on_cpu else max(itemsize_in_loop(use.view) for use in uses)
        wider = max(itemsize, wide) / itemsize
        moved = keep.bytes + (3 * wider - 1) * keep.memory
        costs["keep"] = keep = keep._replace(bytes=moved, memory=wider * keep.memory)
    if shared_terms:  # each needs an inner product with every example's gradient
        costs.pop("form", None)
        more = shared_terms * keep.flops
        costs = {
            way: cost if way == "keep" else cost._replace(flops=cost.flops + more)
            for way, cost in costs.items()
        }
    return costs


def _within_memory(
    uses: Sequence[Use], costs: Mapping[str, NormCost], itemsize: int, placed: bool
) -> Mapping[str, NormCost]:
    """All ways, or only those that materialise nothing where a gradient would be too large.

    On a CPU, JAX materialises the gradient of a convolution in little more than its own memory.
    """
    form, keep = costs.get("form"), costs["keep"]
    if form and form.temporary > keep.memory and jax.default_backend() == "cpu":
        costs = {way: cost for way, cost in costs.items() if way != "form"}
    tapped = {way: cost for way, cost in costs.items() if way not in ("keep", "form")}
    if not tapped:
        return costs
    times = MATERIALISED_MEMORY.get(jax.default_backend(), MATERIALISED_MEMORY["gpu"])[itemsize]
    if any(use.sizes.pixels for use in uses) and jax.default_backend() == "cpu":
        times = CONVOLUTION_MEMORY
    limit = times * min(cost.memory for cost in tapped.values())
    in_loop = any(kind == SEPARATE for use in uses for kind, _ in use.loops)
    if in_loop and placed and not on_one_device():
        # A loop holds the activations of all layers until it ends, and these gradients come on top.
        # A mesh that splits the parameters does not split them. In a program that is not `placed`,
        # the compiler may split activations by features: holding them would then move them.
        limit /= max(times, 1.0)
    if any(use.in_remat for use in uses):
        limit = 0.0
    return tapped if costs["keep"].memory > max(limit, SMALL * itemsize) else costs


def overlap_of_uses(uses: Sequence[Use], shape: Sequence[int]) -> str | None:
    """How the uses of a parameter share its elements.

    'disjoint' if no two uses share an element, 'overlapping' if they do and their gradients have
    the same form, so that they can be added. None if they cannot.
    """
    seen = [dimensions(use.leading_view, shape) for use in uses]
    if all(disjoint(a, b) for (_, a), (_, b) in itertools.combinations(seen, 2)):
        return "disjoint"
    if not all(dims is not None and covers(region, shape) for dims, region in seen):
        return None
    sides = {_sides_of(use, dims) for use, (dims, _) in zip(uses, seen, strict=True) if dims}
    return "overlapping" if len(sides) == 1 and None not in sides else None


def _sides_of(use: Use, dims: Sequence[int | None]) -> Any:
    """The separate dimensions of the parameter, and those of the left and right vectors."""
    if use.combinations or use.rule.sides is None or any(kind == SEPARATE for kind, _ in use.loops):
        return None
    separate, left, right = use.rule.sides(use.eqn, use.operand)
    if use.rule.family == "lookup" and [dims[i] for i in left] != sorted(
        dims[i] or 0 for i in left
    ):
        return None  # indices are flattened in the order of the table
    names = [frozenset(dims[i] for i in own) for own in (left, right)]
    if any(None in own for own in names) or not all(names):
        return None
    return tuple(dims[i] for i in separate), frozenset(names)


def _formable(uses: Sequence[Use], shape: Sequence[int]) -> bool:
    """Whether the gradient of a matrix can be formed from the products at its uses.

    Only on one device: the formed sides are padded, and a mesh may have split them.
    """
    if not on_one_device():
        return False
    seen = [(use, *dimensions(use.leading_view, shape)) for use in uses]
    sides = (), frozenset({frozenset({0}), frozenset({1})})
    return len(shape) == 2 and all(
        dims is not None and covers(region, shape) and _sides_of(use, dims) == sides
        for use, dims, region in seen
    )
