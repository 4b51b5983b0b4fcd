"""Finds where a loss couples the examples of a batch, such as the statistics of BatchNorm.

A loss couples examples if a statistic over the batch (a sum, maximum or product that runs over the
examples) flows back into a value of each example, if it has a value for each pair of examples, or
if it moves values from one example to another.
Statistics that only reach the scalar loss do not count: sums, means, weighted means, penalties.

| flows back into examples                                   | found                               |
| ---------------------------------------------------------- | ----------------------------------- |
| a statistic of values that depend on parameters            | yes                                 |
| a statistic of the data alone, which scales per-example    | no: a weighted mean, as in          |
| values from which the loss is computed linearly            | `sum(loss * mask / mask.sum())`     |
| any other statistic of the data alone                      | yes                                 |
| integers and booleans (counts, sorted indices)             | no                                  |
| values sorted, reversed or rolled over the batch           | yes                                 |
| rows picked by index, such as a permutation                | no                                  |
| what only auxiliary outputs need                           | no                                  |

The search reads the traced program and goes into jit, checkpoint, custom derivatives, scan, cond
and while. It loses track of examples in primitives that it does not know, and then finds nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program import batch_dims
from bevel.clipping.program.batch_dims import Dims, count_of_examples
from bevel.clipping.program.equations import body_run_once, opened, scan_counts
from bevel.sharding.source_lines import SourceLine, line_of

# Primitives that run over a dimension and remove it, or carry along it.
STATISTICS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce"}
STATISTICS |= {"psum", "pmax", "pmin", "dot_general", "conv_general_dilated"}
CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
# Primitives that move values along dimensions, and the parameter that names these.
MOVING = {"sort": "dimension", "rev": "dimensions"}
# Primitives by which a statistic may scale per-example values.
SCALINGS = {"mul", "div", "gather", "select_n"}
# Operands in which a primitive is linear; None stands for all of them.
LINEAR: dict[str, tuple[int, ...] | None] = dict.fromkeys(
    ("add", "add_any", "sub", "neg", "mul", "dot_general", "reduce_sum", "reshape", "transpose",
     "broadcast_in_dim", "squeeze", "convert_element_type", "copy", "concatenate", "cumsum"),
)  # fmt: skip
LINEAR |= {"div": (0,), "gather": (0,), "slice": (0,), "dynamic_slice": (0,)}
LINEAR |= {"select_n": tuple(range(1, 10))}
# How often a loop is walked until what it carries no longer changes.
PASSES = 3

# How the loss depends on a value: not at all, in some way, or linearly.
UNUSED, USED, LINEARLY = 0, 1, 2


class Coupling(NamedTuple):
    """Where a statistic over the batch is computed, and where it is used for each example."""

    statistic: SourceLine | None
    use: SourceLine | None
    primitive: str

    def __str__(self) -> str:
        if self.primitive in CUMULATIVE:
            return f"{self.primitive} runs over the batch{_at(self.statistic)}"
        if self.primitive in MOVING or self.primitive == "roll":
            return f"{self.primitive} moves values from one example to another{_at(self.use)}"
        if self.statistic is None and self.primitive == "pairs":
            return f"there is a value for each pair of examples{_at(self.use)}"
        where = "" if self.use == self.statistic else _at(self.use)
        return (
            f"{self.primitive} runs over the batch{_at(self.statistic)}, and its result is used "
            f"for each example{where}"
        )


@dataclasses.dataclass(frozen=True)
class _Statistic:
    """A value that was computed from all examples."""

    equations: tuple[JaxprEqn, ...]  # the equation, after the calls that it is in
    of_params: bool


@dataclasses.dataclass(frozen=True)
class _Value:
    dims: Dims
    of_params: bool = False
    statistic: _Statistic | None = None

    @property
    def runs_over_examples(self) -> bool:
        return count_of_examples(self.dims) > 0


class _CouplingFoundError(Exception):
    """Ends the walk at the first coupling."""

    def __init__(self, coupling: Coupling) -> None:
        self.coupling = coupling


def find_coupling(
    program: ClosedJaxpr, params: Sequence[int], examples: Sequence[int]
) -> Coupling | None:
    """Finds a coupling in a loss that was traced for a batch, or returns None.

    Args:
      program: the traced loss. Its first output is the value; others are auxiliary.
      params, examples: the numbers of the inputs that are differentiated, and of those whose first
        dimension runs over the batch.
    """
    inputs = []
    for k, var in enumerate(program.jaxpr.invars):
        shape = _shape_of(var)
        dims = batch_dims.batch(shape) if k in examples and shape else batch_dims.plain(shape)
        inputs.append(_Value(dims, k in params))
    uses = [LINEARLY, *(UNUSED for _ in program.jaxpr.outvars[1:])]
    try:
        _walk(program.jaxpr, inputs, uses, ())
    except _CouplingFoundError as found:
        return found.coupling
    except Exception:  # a form of a primitive that the rules do not expect
        return None
    return None


def _walk(
    jaxpr: Jaxpr, inputs: Sequence[_Value], uses: Sequence[int], calls: tuple[JaxprEqn, ...]
) -> list[_Value]:
    """The values of the outputs of a program. `uses` says how the loss depends on them."""
    used = _uses_of_variables(jaxpr, uses)
    values: dict[Any, _Value] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _Value:
        if isinstance(atom, Literal) or atom not in values:
            return _Value(batch_dims.plain(_shape_of(atom)))
        return values[atom]

    pieces: dict[Any, JaxprEqn] = {}
    for eqn in jaxpr.eqns:
        how = [used.get(var, UNUSED) for var in eqn.outvars]
        if any(how):
            if eqn.primitive.name == "slice":
                pieces[eqn.outvars[0]] = eqn
            elif eqn.primitive.name == "concatenate" and _rolls_examples(eqn, pieces, read):
                raise _CouplingFoundError(Coupling(None, _line((*calls, eqn)), "roll"))
            found = _step(eqn, [read(atom) for atom in eqn.invars], how, calls)
            values.update(zip(eqn.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _step(
    eqn: JaxprEqn, inputs: list[_Value], uses: list[int], calls: tuple[JaxprEqn, ...]
) -> list[_Value]:
    """The values of the outputs of an equation."""
    name, body, inside = eqn.primitive.name, body_run_once(eqn), (*calls, eqn)
    if body is not None:
        return _walk(body, inputs, uses, inside)
    if name == "scan":
        return _scan(eqn, inputs, inside)
    if name == "while":
        skip, count = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        consts, carry = inputs[skip : skip + count], inputs[skip + count :]
        return _loop(opened(eqn.params["body_jaxpr"]), consts, carry, [], inside)[: len(carry)]
    if name == "cond":
        branches = [
            _walk(opened(branch), inputs[1:], [USED] * len(eqn.outvars), inside)
            for branch in eqn.params["branches"]
        ]
        return [_either(several) for several in zip(*branches, strict=True)]
    return _computed(eqn, inputs, uses, inside)


def _computed(
    eqn: JaxprEqn, inputs: list[_Value], uses: list[int], equations: tuple[JaxprEqn, ...]
) -> list[_Value]:
    """The outputs of an equation without a body. Raises an error if it couples examples."""
    name, of_params = eqn.primitive.name, any(value.of_params for value in inputs)
    over_examples = any(value.runs_over_examples for value in inputs)
    statistic = next((v.statistic for v in inputs if v.statistic is not None), None)
    bare = [v.statistic for v in inputs if v.statistic and not v.runs_over_examples]
    outputs = []
    for dims, var, how in zip(
        batch_dims.output_dims(eqn, [v.dims for v in inputs]), eqn.outvars, uses, strict=True
    ):
        value = _Value(dims, of_params)
        if not jnp.issubdtype(getattr(var.aval, "dtype", bool), jnp.inexact):
            outputs.append(value)
            continue
        if not value.runs_over_examples:
            if over_examples and name in STATISTICS:
                statistic = _Statistic(equations, of_params)
            outputs.append(dataclasses.replace(value, statistic=statistic))
            continue
        if how != UNUSED and any(_has_examples_along(axis, inputs[0]) for axis in _axes(eqn)):
            raise _CouplingFoundError(Coupling(_line(equations), _line(equations), name))
        if of_params and count_of_examples(dims) > 1:
            raise _CouplingFoundError(Coupling(None, _line(equations), "pairs"))
        if bare and over_examples:
            source = next((found for found in bare if found.of_params), bare[0])
            scales = name in SCALINGS and how == LINEARLY and not source.of_params
            if not scales:
                use = _line(equations)
                raise _CouplingFoundError(
                    Coupling(_line(source.equations), use, source.equations[-1].primitive.name)
                )
        outputs.append(value)
    return outputs


def _scan(eqn: JaxprEqn, inputs: list[_Value], calls: tuple[JaxprEqn, ...]) -> list[_Value]:
    consts, carried = scan_counts(eqn)
    given, carry, xs = (
        inputs[:consts],
        inputs[consts : consts + carried],
        inputs[consts + carried :],
    )
    length = eqn.params["length"]
    over_examples = any(count_of_examples(x.dims[:1]) for x in xs)
    rows = [dataclasses.replace(x, dims=x.dims[1:]) for x in xs]
    found = _loop(opened(eqn.params["jaxpr"]), given, carry, rows, calls)
    step = (batch_dims.Factor(length, over_examples),)
    stacked = [dataclasses.replace(y, dims=(step, *y.dims)) for y in found[carried:]]
    return [*found[:carried], *stacked]


def _loop(
    body: Jaxpr,
    consts: list[_Value],
    carry: list[_Value],
    rows: list[_Value],
    calls: tuple[JaxprEqn, ...],
) -> list[_Value]:
    """The outputs of the body of a loop: what it carries, and the rows that it stacks."""
    found = list[_Value]()
    for _ in range(PASSES):
        uses = [USED] * len(body.outvars)
        found = _walk(body, [*consts, *carry, *rows], uses, calls)
        after = [_either(pair) for pair in zip(carry, found[: len(carry)], strict=True)]
        if after == carry:
            break
        carry = after
    return [*carry, *found[len(carry) :]]


def _either(values: Sequence[_Value]) -> _Value:
    """What is known of a value that is one of several."""
    shape = [batch_dims.length(dim) for dim in values[0].dims]
    return _Value(
        batch_dims.merged(shape, [v.dims for v in values]),
        any(v.of_params for v in values),
        next((v.statistic for v in values if v.statistic is not None), None),
    )


def _axes(eqn: JaxprEqn) -> Sequence[int]:
    """The dimensions along which a primitive carries or moves values."""
    name = eqn.primitive.name
    if name in CUMULATIVE:
        return (eqn.params["axis"],)
    return np.atleast_1d(eqn.params[MOVING[name]]).tolist() if name in MOVING else ()


def _has_examples_along(axis: int, value: _Value) -> bool:
    return count_of_examples(value.dims[axis : axis + 1]) > 0


def _rolls_examples(
    eqn: JaxprEqn, pieces: Mapping[Any, JaxprEqn], read: Callable[[Any], _Value]
) -> bool:
    """Whether a concatenation puts slices of the examples back in another order: `jnp.roll`."""
    if not all(not isinstance(var, Literal) and var in pieces for var in eqn.invars):
        return False
    slices = [pieces[var] for var in eqn.invars]
    whole, axis = slices[0].invars[0], eqn.params["dimension"]
    starts = [piece.params["start_indices"][axis] for piece in slices]
    return (
        all(piece.invars[0] is whole for piece in slices)
        and starts != sorted(set(starts))
        and jnp.issubdtype(getattr(eqn.outvars[0].aval, "dtype", bool), jnp.inexact)
        and _has_examples_along(axis, read(whole))
    )


# How the loss depends on the variables of a program, from its outputs to its inputs.


def _uses_of_variables(jaxpr: Jaxpr, uses: Sequence[int]) -> dict[Any, int]:
    used: dict[Any, int] = {}

    def add(atom: Any, how: int) -> None:
        if how and not isinstance(atom, Literal):
            used[atom] = min(used.get(atom, how), how)

    for atom, how in zip(jaxpr.outvars, uses, strict=True):
        add(atom, how)
    for eqn in reversed(jaxpr.eqns):
        outputs = [used.get(var, UNUSED) for var in eqn.outvars]
        if any(outputs):
            for atom, how in zip(eqn.invars, _uses_of_inputs(eqn, outputs), strict=True):
                add(atom, how)
    return used


def _uses_of_inputs(eqn: JaxprEqn, uses: list[int]) -> list[int]:
    body = body_run_once(eqn)
    if body is not None:
        used = _uses_of_variables(body, uses)
        return [used.get(var, UNUSED) for var in body.invars]
    name = eqn.primitive.name
    repeated = len(set(map(id, eqn.invars))) < len(eqn.invars)
    if USED in uses or name not in LINEAR or (name in ("mul", "dot_general") and repeated):
        return [USED] * len(eqn.invars)
    operands = LINEAR[name]
    return [LINEARLY if operands is None or k in operands else USED for k in range(len(eqn.invars))]


def _shape_of(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


# Source lines.


def _line(equations: tuple[JaxprEqn, ...]) -> SourceLine | None:
    """The user's line of an equation, given after the calls that it is in.

    JAX traces a jitted function of a library (`jnp.var`) once and then uses its program again, so
    lines inside of it may be those of another call. The line of the call is right.
    """
    for eqn in equations[:-1]:
        body = body_run_once(eqn)
        source = getattr(getattr(body, "debug_info", None), "func_src_info", "") or ""
        if "site-packages" in source:
            return line_of(eqn)
    return line_of(equations[-1])


def _at(line: SourceLine | None) -> str:
    return "" if line is None else f" at {line}"
