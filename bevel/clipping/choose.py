"""The choice, per parameter: how its norm and its sum are taken, by FLOPs and bytes from shapes.

| way     | norm                                       | sum over the batch         |
| ------- | ------------------------------------------ | -------------------------- |
| outer   | lengths of two vectors, where rows are one | one contraction            |
| gram    | inner products of all pairs of rows        | one contraction            |
| product | the gradient, formed and dropped           | one contraction            |
| keep    | the gradient, formed by JAX and kept       | from the kept gradients    |
| form    | the same, formed by a rule's products      | from the kept gradients    |

Costs are those of one example, over the cost of moving a byte; `BALANCE` says how many operations
take as long.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms import gram, outer_products
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.registry import SEPARATE, GradientSizes
from bevel.clipping.uses.find import Use, UsesByParameter
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.taps import TappedParameter
from bevel.clipping.uses.views import apart, dimensions, whole
from bevel.errors import FixArgumentsError
from bevel.sharding.types import on_one_device

WAYS = ("outer", "gram", "product", "form", "keep")
# Operations in the time of moving one byte, by platform and by bytes per number.
BALANCE: Mapping[str, Mapping[int, float]] = {
    "gpu": {2: 180.0, 4: 90.0, 8: 10.0},
    "tpu": {2: 200.0, 4: 30.0, 8: 1.0},
    "cpu": {2: 4.0, 4: 8.0, 8: 4.0},
}
# A kept gradient may take so many times the memory of the values that it is made of, by platform
# and by bytes per number. In float32 the other forms cost a GPU more: there is no kernel for them.
KEPT_MEMORY: Mapping[str, Mapping[int, float]] = {
    "gpu": {2: 1.15, 4: 1.25, 8: 1.25},
    "tpu": {2: 1.0, 4: 1.0, 8: 1.0},
    "cpu": {2: 2.0, 4: 2.0, 8: 2.0},
}
# Pairs of rows make small matrices, at which matrix units are not at their best: a multiple of the
# time, with a kernel that takes half of the symmetric matrices, and without.
GRAM_WITH_KERNEL, GRAM_BY_COMPILER = 1.2, 2.4
SMALL = 2**14  # numbers; a gradient of fewer is kept without a thought


class NormCost(NamedTuple):
    """Of one example, beyond the forward pass and the backward pass of activations."""

    flops: float
    bytes: float
    memory: float  # bytes that live until the coefficients are known
    slack: float  # of the norm, where rows are at random angles
    idle: float = 0.0  # time in which matrix units wait, in FLOPs that they could do

    def time(self, itemsize: int) -> float:
        """In bytes moved."""
        balance = BALANCE.get(jax.default_backend(), BALANCE["cpu"])
        return (self.flops + self.idle) / balance[itemsize] + self.bytes


@dataclasses.dataclass(frozen=True)
class NormChoice:
    """What was decided for one parameter, and why."""

    param: int
    way: str
    costs: Mapping[str, NormCost]
    uses: tuple[Use, ...] | None  # None: not understood, so differentiated by JAX
    joined: bool = False
    why: str = ""
    common: tuple[SharedTerm, ...] = ()  # terms that are the same for every example


def choose(
    found: UsesByParameter,
    types: Sequence[Any],
    asked: str | Mapping[str, str],
    paths: Sequence[str],
) -> list[NormChoice]:
    """The way of each parameter.

    `asked`: a way for all that can take it, or ways by path, which must be possible.
    """
    ways = asked if isinstance(asked, Mapping) else {}
    for part in ways:
        if not any(part in path for path in paths):
            raise FixArgumentsError(
                f"norms names {part!r}, but no parameter has that in its path: {', '.join(paths)}."
            )
    result = []
    for i, aval in enumerate(types):
        own = [way for part, way in ways.items() if part in paths[i] and way != "auto"]
        chosen = choose_one(i, found[i], aval, own[-1] if own else asked)
        if own and chosen.way != own[-1]:
            raise FixArgumentsError(
                f"norms asks for {own[-1]!r} for {paths[i]}, which can only be taken by "
                f"{', '.join(chosen.costs) or 'keep'} ({chosen.why or 'no rule gives it here'})."
            )
        result.append(chosen)
    return result


def choose_one(
    param: int, found: Sequence[Use | SharedTerm] | None, aval: Any, asked: Any = None
) -> NormChoice:
    if not found:
        why = "not used" if found is not None else "a use without a rule"
        return NormChoice(param, "keep", {}, None, why=why)
    uses = [use for use in found if isinstance(use, Use)]
    common = tuple(use for use in found if isinstance(use, SharedTerm))
    related = relation(uses, aval.shape)
    if related is None:
        return NormChoice(param, "keep", {}, None, why="overlapping uses of different shape")
    if common and (not uses or any(use.turns for use in uses)):
        return NormChoice(param, "keep", {}, None, why="the same for every example")
    joined = related == "joined"
    avals: list[Any] = [use.eqn.outvars[0].aval for use in uses]
    itemsize = max(2, *(np.dtype(a.dtype).itemsize for a in avals))
    costs = costs_of([use.sizes for use in uses], joined, itemsize)
    if not (_formable(uses, aval.shape) or all(use.sizes.pixels for use in uses)):
        costs.pop("form", None)
    if any(kind == SEPARATE for use in uses for kind, _ in use.loops):
        # What a loop has stacked is put in order.
        costs["keep"] = costs["keep"]._replace(bytes=costs["keep"].bytes + 2 * costs["keep"].memory)
    if common:  # each asks for an inner product with every example's gradient
        costs.pop("form", None)
        more = len(common) * costs["keep"].flops
        costs = {
            w: c if w == "keep" else c._replace(flops=c.flops + more) for w, c in costs.items()
        }
    plain = NormChoice(param, "keep", costs, tuple(uses), joined, common=common)
    if isinstance(asked, str) and asked in costs:
        return dataclasses.replace(plain, way=asked, why="asked for")
    tapped = {way: cost for way, cost in costs.items() if way not in ("keep", "form")}
    times = KEPT_MEMORY.get(jax.default_backend(), KEPT_MEMORY["gpu"])[itemsize]
    room = times * min((c.memory for c in tapped.values()), default=math.inf)
    if any(use.recomputed for use in uses):
        room = 0.0
    large = bool(tapped) and costs["keep"].memory > max(room, SMALL * itemsize)
    allowed = tapped if large else costs
    sharp = {way: cost for way, cost in allowed.items() if cost.slack <= gram.WORST_SLACK}
    if not sharp:
        way = min(allowed, key=lambda w: allowed[w].slack)
        return dataclasses.replace(plain, way=way, why="the sharpest")
    way = min(sharp, key=lambda w: sharp[w].time(itemsize))
    return dataclasses.replace(plain, way=way)


def relation(uses: Sequence[Use], shape: Sequence[int]) -> str | None:
    """'apart' if no two uses share a number of the parameter, 'joined' if they can be added."""
    seen = [dimensions(use.start, shape) for use in uses]
    if all(apart(a, b) for (_, a), (_, b) in itertools.combinations(seen, 2)):
        return "apart"
    if not all(dims is not None and whole(box, shape) for dims, box in seen):
        return None
    sides = {_sides_of(use, dims) for use, (dims, _) in zip(uses, seen, strict=True) if dims}
    return "joined" if len(sides) == 1 and None not in sides else None


def _sides_of(use: Use, dims: Sequence[int | None]) -> Any:
    """Which dimensions of the parameter a use takes apart, and which two sets it multiplies."""
    if use.turns or use.rule.sides is None or any(kind == SEPARATE for kind, _ in use.loops):
        return None
    separate, left, right = use.rule.sides(use.eqn, use.operand)
    if use.rule.family == "lookup" and [dims[i] for i in left] != sorted(
        dims[i] or 0 for i in left
    ):
        return None  # places are counted in the order of the table
    names = [frozenset(dims[i] for i in own) for own in (left, right)]
    if any(None in own for own in names) or not all(names):
        return None
    return tuple(dims[i] for i in separate), frozenset(names)


def _formable(uses: Sequence[Use], shape: Sequence[int]) -> bool:
    """Whether the gradient of a matrix can be formed of the products at its uses, on one device."""
    if not on_one_device():  # a mesh may have cut what would be padded
        return False
    seen = [(use, *dimensions(use.start, shape)) for use in uses]
    sides = (), frozenset({frozenset({0}), frozenset({1})})
    return len(shape) == 2 and all(
        dims is not None and whole(box, shape) and _sides_of(use, dims) == sides
        for use, dims, box in seen
    )


def costs_of(sizes: Sequence[GradientSizes], joined: bool, itemsize: int) -> dict[str, NormCost]:
    """What each way costs for the uses of one parameter."""
    looked_up = any(s.looked_up for s in sizes)
    if joined:
        rows = sum(s.rows for s in sizes)
        only_lookups = all(s.looked_up for s in sizes)
        largest = max(sizes, key=lambda s: s.rows * s.left)
        sizes = [largest._replace(rows=rows, looked_up=only_lookups)]
    result = {}
    barred = {"outer"} if joined else set()
    barred |= {"product"} if looked_up else set()
    for way in (w for w in WAYS if w not in barred):
        parts = [cost(way, s, itemsize) for s in sizes]
        if None not in parts:
            whole = zip(*parts, strict=True)
            flops, moved, memory, slack, idle = whole
            result[way] = NormCost(sum(flops), sum(moved), sum(memory), max(slack), sum(idle))
    return result


def cost(way: str, s: GradientSizes, itemsize: int) -> NormCost | None:
    """Of one use: n sums of R outer products of D and K numbers. None: it cannot be done so."""
    n, rows, left, right = s[:4]
    on_gpu = jax.default_backend() == "gpu"
    dtype = np.dtype(np.float64) if itemsize == 8 else np.dtype(np.float32)
    contraction = 2.0 * n * rows * right * (1 if s.looked_up else left)
    held = s.pixels or rows * (1 if s.looked_up else left)  # numbers that make up the left side
    read = n * (held + rows * right) * itemsize
    kept = n * left * right * itemsize
    # A convolution's products read a slice for each offset of its window.
    slices = 2.0 * n * rows * (left + left * rows / s.pixels * right) * itemsize if s.pixels else 0
    if way == "keep":
        # JAX batches the gradient of a convolution as one with a group for each example.
        moved = 100.0 * slices if on_gpu else slices
        idle = contraction if on_gpu and _odd_sides(s) else 0.0
        return NormCost(contraction, read + moved + 3 * kept, kept, 1e-5, idle)
    if way == "form":
        padded = 2.0 * n * rows * sum(_odd_sides(s)) * itemsize
        if not s.pixels and not padded:
            return None
        return NormCost(contraction, read + slices + padded + 3 * kept, kept, 1e-5)
    rounding = precision.unit_roundoff(jnp.bfloat16 if itemsize == 2 else dtype)
    # One side is scaled before the contraction.
    values = s.pixels or (not s.looked_up and gram.values_are_scaled(rows, left, right, rounding))
    scaled = n * (held if values else rows * right) * itemsize
    flops, moved = contraction, read + 2.0 * scaled
    kernels = gram_kernel.available(jnp.bfloat16, jnp.bfloat16) and itemsize == 2
    if s.pixels and on_gpu and not (kernels and way == "product"):
        moved += 11.0 * read  # a convolution with a float32 result widens its operands first
    if way == "outer":
        if rows > 1 or s.pixels:
            return None
        return NormCost(flops, moved + read, read, rounding)
    if way == "gram":
        pairs = n * rows * rows
        kernel = kernels and not s.pixels and rows >= gram.KERNEL_ROWS
        times = GRAM_WITH_KERNEL if kernel else GRAM_BY_COMPILER
        across = s.pixels / rows if s.pixels else left  # patches share the products of pixels
        products = 2.0 * pairs * (right + (0 if s.looked_up else across))
        leaning = 0.0 if s.looked_up else gram.LEANING
        other = gram.spread(rows, right) if values else gram.spread(rows, left, leaning)
        slack = _gram_slack(s, dtype) + rounding * math.sqrt(other)
        done = products / 2 if kernel else products  # half of a symmetric matrix
        moved += read + (0 if kernel else 20 * pairs)
        return NormCost(flops + done, moved, read, slack, idle=times * products - done)
    if s.looked_up:
        return None
    short = right if s.pixels else min(left, right)
    sharp = rounding * math.sqrt(gram.spread(rows, short)) if itemsize == 2 else rounding
    extra = 2.0 * n * rows * short * short if itemsize == 2 else 0
    formed = slices or 8.0 * n * left * right
    flops, idle = flops + contraction + extra, 0.0
    if s.pixels and kernels:
        # On the chip: from one copy of its operands, at half speed, short of rows at less.
        idle, formed = flops * (0.9 + 64 / rows), 4.0 * read
    return NormCost(flops, moved + 2 * read + formed, read, sharp + rows * 1e-7, idle)


def _odd_sides(s: GradientSizes) -> list[int]:
    """Lengths of vectors that matrix units take at half their speed, unless they are padded."""
    sides = () if s.looked_up or s.pixels else (s.left, s.right)
    return [size for size in sides if outer_products.is_odd(size)]


def _gram_slack(s: GradientSizes, dtype: np.dtype) -> float:
    def off(entries: int, others: int) -> float:
        near = 1 + 0.8 * s.rows / math.sqrt(others)
        terms = 2 * min(entries, gram_kernel.CHUNK)
        return precision.rounding_growth(terms, dtype) * min(gram.spread(s.rows, others), near)

    left = 0.0 if s.looked_up else off(s.left, s.right)
    return (left + off(s.right, s.left)) / 2


def tapped_of(chosen: NormChoice, aval: Any) -> TappedParameter | None:
    """The taps of a parameter, or None if its gradient is kept."""
    if chosen.way == "keep" or chosen.uses is None:
        return None
    rows = [use.sizes.rows for use in chosen.uses]
    most = sum(rows) if chosen.joined else max(rows)
    return TappedParameter(
        chosen.param,
        tuple(aval.shape),
        chosen.uses,
        chosen.way,
        most,
        chosen.joined,
        common=chosen.common,
    )
