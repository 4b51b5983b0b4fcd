"""Which dimensions of a value run over the examples of a batch.

The program was traced for a batch, possibly of size 1. Every dimension is a list of factors,
because a reshape may merge the examples with other dimensions ((B, T, D) to (B * T, D)) and split
them again. A dimension without a factor that runs over examples belongs to one example, or to none.

Rules are by family, and return the dimensions of each output. A primitive without a rule keeps the
dimensions of an input that has the output's shape, and otherwise loses track of the examples.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jax.extend.core import JaxprEqn


class Factor(NamedTuple):
    """A factor of the length of a dimension."""

    size: int
    examples: bool = False


Dim = tuple[Factor, ...]
Dims = tuple[Dim, ...]
Rule = Callable[[JaxprEqn, Sequence[Dims]], list[Dims]]


def plain(shape: Iterable[int]) -> Dims:
    """Dimensions that do not run over examples."""
    return tuple((Factor(n),) for n in shape)


def batch(shape: Sequence[int]) -> Dims:
    """The dimensions of an argument whose first one runs over examples."""
    return ((Factor(shape[0], True),), *plain(shape[1:]))


def count_of_examples(dims: Dims) -> int:
    """How many factors run over examples: 2 or more if there is a value for each pair of them."""
    return sum(factor.examples for dim in dims for factor in dim)


def output_dims(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    """The dimensions of the outputs of an equation."""
    rule = _RULES.get(eqn.primitive.name, _like_an_input)
    return rule(eqn, inputs)


def merged(shape: Sequence[int], several: Iterable[Dims]) -> Dims:
    """The dimensions of a value of this shape that is computed elementwise from several others.

    Dimensions of size 1 are broadcast.
    """
    found = list(plain(shape))
    for dims in several:
        if len(dims) == len(shape) and _broadcasts(dims, shape):
            for k, dim in enumerate(dims):
                if _has_examples(dim) and length(dim) == shape[k]:
                    found[k] = dim
    return tuple(found)


def _has_examples(dim: Dim) -> bool:
    return any(factor.examples for factor in dim)


def length(dim: Dim) -> int:
    return math.prod(factor.size for factor in dim)


def _broadcasts(dims: Dims, shape: Sequence[int]) -> bool:
    return all(length(dim) in (1, n) for dim, n in zip(dims, shape, strict=True))


def _shape(eqn: JaxprEqn, output: int = 0) -> tuple[int, ...]:
    return tuple(getattr(eqn.outvars[output].aval, "shape", ()))


# Families.


def _like_an_input(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    return [merged(_shape(eqn, k), inputs) for k in range(len(eqn.outvars))]


def _without(name: str) -> Rule:
    """A rule for primitives whose outputs lack the dimensions in a parameter."""

    def rule(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
        gone = eqn.params[name]  # a sum over an axis of the user's vmap has names there, too
        kept = [tuple(dim for k, dim in enumerate(dims) if k not in gone) for dims in inputs]
        return kept[: len(eqn.outvars)]

    return rule


def _resized(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    """Keeps the dimensions of the first input. One of another length may have lost examples."""
    outputs = []
    for k in range(len(eqn.outvars)):
        pairs = zip(inputs[0], _shape(eqn, k), strict=True)
        outputs.append(tuple(dim if length(dim) == n else (Factor(n),) for dim, n in pairs))
    return outputs


def _transpose(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    return [tuple(inputs[0][k] for k in eqn.params["permutation"])]


def _broadcast(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    shape, found = _shape(eqn), list(plain(_shape(eqn)))
    for dim, k in zip(inputs[0], eqn.params["broadcast_dimensions"], strict=True):
        if length(dim) == shape[k]:
            found[k] = dim
    return [tuple(found)]


def _concatenate(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    along, shape = eqn.params["dimension"], _shape(eqn)
    found = [
        next((dims[k] for dims in inputs if _has_examples(dims[k])), (Factor(n),))
        for k, n in enumerate(shape)
    ]
    found[along] = (Factor(shape[along], any(_has_examples(dims[along]) for dims in inputs)),)
    return [tuple(found)]


def _split(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    along, outputs = eqn.params["axis"], []
    for k in range(len(eqn.outvars)):
        found = list(inputs[0])
        found[along] = (Factor(_shape(eqn, k)[along], _has_examples(found[along])),)
        outputs.append(tuple(found))
    return outputs


def _dot_general(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    a, b = inputs[0], inputs[1]
    shared = [
        a[i] if _has_examples(a[i]) else b[j] for i, j in zip(left_batch, right_batch, strict=True)
    ]
    a_free = [dim for k, dim in enumerate(a) if k not in (*left, *left_batch)]
    b_free = [dim for k, dim in enumerate(b) if k not in (*right, *right_batch)]
    return [(*shared, *a_free, *b_free)]


def _convolution(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    numbers, image, shape = eqn.params["dimension_numbers"], inputs[0], _shape(eqn)
    found = list(plain(shape))
    found[numbers.out_spec[0]] = image[numbers.lhs_spec[0]]
    channels = image[numbers.lhs_spec[1]]
    if _has_examples(channels) and channels[0].examples:
        # The vmap of a convolution has one group of channels for each example.
        size, out = channels[0].size, numbers.out_spec[1]
        if eqn.params["feature_group_count"] % size == 0:
            found[out] = (channels[0], Factor(shape[out] // size))
    return [tuple(found)]


def _gather(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    numbers, (operand, indices) = eqn.params["dimension_numbers"], inputs[:2]
    shape, sizes = _shape(eqn), eqn.params["slice_sizes"]
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [k for k in range(len(operand)) if k not in gone]
    found, of_indices = list(plain(shape)), iter(indices[:-1])
    kept = {
        k: operand[window]
        for k, window in zip(numbers.offset_dims, windows, strict=True)
        if sizes[window] == length(operand[window])
    }
    # JAX takes a dimension of size 1 as it is, and looks up the others of the same example.
    is_known = any(length(dim) == 1 and _has_examples(dim) for dim in kept.values())
    for k in range(len(shape)):
        if k not in numbers.offset_dims:
            found[k] = next(of_indices)
            if is_known:
                found[k] = (Factor(length(found[k])),)
    for k, dim in kept.items():
        found[k] = dim
    return [tuple(found)]


def _reshape(eqn: JaxprEqn, inputs: Sequence[Dims]) -> list[Dims]:
    order = eqn.params.get("dimensions") or range(len(inputs[0]))
    return [regrouped(tuple(inputs[0][k] for k in order), _shape(eqn))]


def regrouped(dims: Dims, shape: Sequence[int]) -> Dims:
    """The dimensions after a reshape: the same factors in the same order, in other groups."""
    factors = [f for dim in dims for f in dim if f.size != 1 or f.examples]
    found: list[Dim] = []
    for n in shape:
        group, left = list[Factor](), n
        while factors and (left > 1 or (factors[0].size == 1 and not group)):
            factor = factors.pop(0)
            if left % factor.size == 0:
                group.append(factor)
                left //= factor.size
            elif factor.examples or factor.size % left:
                return plain(shape)  # it splits the examples
            else:
                group.append(Factor(left))
                factors.insert(0, Factor(factor.size // left))
                left = 1
        found.append(tuple(group) or (Factor(n),))
    if factors and found:
        found[-1] = (*found[-1], *factors)  # a batch of size 1
    return tuple(found)


REDUCTIONS = (
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
    "reduce_xor", "argmax", "argmin", "psum", "pmax", "pmin",
)  # fmt: skip
RESIZING = (
    "slice", "dynamic_slice", "dynamic_update_slice", "pad", "rev", "sort", "top_k",
    "reduce_window_sum", "reduce_window_max", "reduce_window_min",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(REDUCTIONS, _without("axes")),
    **dict.fromkeys(RESIZING, _resized),
    "reduce": _without("dimensions"),
    "squeeze": _without("dimensions"),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "split": _split,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "reshape": _reshape,
}
