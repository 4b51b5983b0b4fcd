"""The second pass of the mode 'boundaries': each remat is differentiated again by itself.

The first backward pass held the inputs and cotangents of every remat. The second pass walks the
loss, evaluates only what is the same for every example, and at each remat computes the weighted
sums of the gradients inside it, with the norms of what it sums. A scan over layers stays a scan.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.accumulate.low_memory import (
    ReadWeightedSum,
    SumsAndNorms,
    add_by_parameter,
    available_after,
)
from bevel.clipping.accumulate.slices import tied_to_slice
from bevel.clipping.arguments import Leaves
from bevel.clipping.program.batching import over_examples, replay_equation
from bevel.clipping.program.equations import bind, body_of_call, scan_counts
from bevel.clipping.program.example_rows import ExampleRows
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.boundaries import Boundary, Path, shared_in_scan
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.tapped_program import evaluate_tapped
from bevel.clipping.uses.taps import TapReading
from bevel.clipping.uses.views import LoopEntry, is_one_slice_per_step
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import retyped

Held = Mapping[Path, TapReading]


@dataclasses.dataclass(frozen=True)
class SecondPass:
    """The weighted sums of all uses inside the boundaries of a loss."""

    loss: TracedExample
    layout: MeshLayout
    boundaries: Mapping[Path, Boundary]
    uses: Mapping[Path, Sequence[tuple[Use, str, int]]]  # by boundary: use, way and group
    params: Sequence[Any]
    factors: Sequence[Any]
    keep: Any
    numbers: Sequence[Any]  # one array with a number of each example (`ExampleRows`), or none

    def sums(self, values: Leaves, held: Held) -> SumsAndNorms:
        """The sums and norms by parameter. `values` are the arguments of the batch."""
        examples = len(values.batch) + len(values.keys)
        inputs = [*values.params, *[None] * examples, *values.constants]
        held = {path: self._by_step(self.boundaries[path], r) for path, r in held.items()}
        program = self.loss.jaxpr
        _, totals = self._run(program.jaxpr, program.consts, inputs, (), held)
        read = []
        for path, boundary in self.boundaries.items():
            for use, _, _ in self.uses[path]:
                total, norms = totals[use.path]
                read.append((use, total, jnp.moveaxis(norms, len(boundary.lengths), 0)))
        return add_by_parameter(read)

    def _by_step(self, boundary: Boundary, reading: TapReading) -> TapReading:
        """What is held for a boundary, with the steps of its loops first, then the examples."""
        steps = len(boundary.lengths)
        h, g = jax.tree.map(lambda x: jnp.moveaxis(x, 0, steps), (reading.h, reading.g))
        # Behind the coefficients: otherwise the compiler would share what is recomputed with the
        # first pass, and keep it.
        return TapReading(*available_after((h, g), self.factors[0]))

    def _run(
        self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any], path: Path, held: Held
    ) -> tuple[list[Any], dict[Path, list[Any]]]:
        """The outputs that are the same for every example, or None, and sums and norms by use."""
        env = {v: x for v, x in zip(jaxpr.invars, inputs, strict=True) if x is not None}
        env |= dict(zip(jaxpr.constvars, consts, strict=True))
        totals: dict[Path, list[Any]] = {}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else env.get(atom)

        for eqn in jaxpr.eqns:
            here = (*path, id(eqn))
            values = [read(v) for v in eqn.invars]
            inside = {at: x for at, x in held.items() if at[: len(here)] == here}
            outputs: Sequence[Any] = [None] * len(eqn.outvars)
            body = body_of_call(eqn)
            if body is not None:
                outputs, more = self._run(body.jaxpr, body.consts, values, here, inside)
                totals |= more
            elif here in self.boundaries:
                # One after the other, so that one remat at a time is recomputed.
                reading = available_after(inside[here], list(totals.values())[-1:])
                totals |= self._at_boundary(self.boundaries[here], values, reading)
            elif inside and eqn.primitive.name == "scan":
                totals |= self._through_scan(eqn, values, here, inside)
            if body is None and all(x is not None for x in values):
                outputs = self._evaluate(eqn, values)
            pairs = zip(eqn.outvars, outputs, strict=True)
            env.update((v, x) for v, x in pairs if x is not None)
        return [read(v) for v in jaxpr.outvars], totals

    def _evaluate(self, eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        if self.layout.manual:
            return bind(eqn, values)
        return replay_equation(eqn, values, self.layout, depends=False)

    def _through_scan(
        self, eqn: JaxprEqn, values: Sequence[Any], here: Path, held: Held
    ) -> dict[Path, list[Any]]:
        consts, carry = scan_counts(eqn)
        body = eqn.params["jaxpr"]
        body = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
        flags = shared_in_scan(eqn, [x is not None for x in values])
        known = [x if flag else None for x, flag in zip(values, flags, strict=True)]
        shared, first, slices = (
            known[:consts],
            known[consts : consts + carry],
            known[consts:][carry:],
        )

        def step(state: Any, own: Any) -> tuple[Any, Any]:
            index, slices, reading = own
            outputs, totals = self._run(
                body.jaxpr, body.consts, [*shared, *state, *slices], here, reading
            )
            state = [None if x is None else y for x, y in zip(state, outputs[:carry], strict=True)]
            tied = {at: [self._tied(at, x, index), n] for at, (x, n) in totals.items()}
            return state, tied

        options = {k: eqn.params[k] for k in ("length", "reverse")}
        steps = jnp.arange(options["length"])
        return jax.lax.scan(step, first, (steps, slices, held), **options)[1]

    def _tied(self, path: Path, total: Any, index: Any) -> Any:
        """A layer's sum, sharded like its slice of the parameter.

        Otherwise the sums of all layers would be reduced over the mesh together, after the loop.
        """
        found = (use for uses in self.uses.values() for use, _, _ in uses if use.path == path)
        use = next(found)
        if self.layout.manual or not is_one_slice_per_step(use.view):
            return total
        return tied_to_slice(total, self.params[use.param], index, self.layout, use.param)

    def _at_boundary(
        self, boundary: Boundary, values: Sequence[Any], reading: TapReading
    ) -> dict[Path, list[Any]]:
        """Sums and norms of the uses inside one remat, from its inputs and cotangents."""
        uses, body, depth = self.uses[boundary.path], boundary.body, len(boundary.path)
        inner = {use.path[depth:]: i for i, (use, _, _) in enumerate(uses)}
        known = [i for i in range(len(values)) if i not in boundary.examples]

        def one(leaves: Leaves) -> list[Any]:
            h, g, (*factors, keep), numbers = leaves.batch
            rows = ExampleRows(*numbers) if numbers else None
            reads = [ReadWeightedSum(way, factors[group], keep) for _, way, group in uses]
            own = {i: _inside(use, boundary) for i, (use, _, _) in enumerate(uses)}
            sinks = {i: read.sink(own[i]) for i, read in enumerate(reads)}
            inputs = dict(zip(known, leaves.params, strict=True))
            inputs |= dict(zip(boundary.examples, h, strict=True))

            def read(i: int, inputs: Sequence[Any], outputs: Sequence[Any], sink: Any) -> Any:
                use = own[i]
                others = [inputs[j] for j in use.rule.others(use.eqn, use.operand)]
                (output,) = outputs
                if rows is not None:
                    others, output = [rows.tied(x) for x in others], rows.tied(output)
                output, none = reads[i].read(use, others, output, sink)
                return [output], none

            def forward(sinks: dict[int, Any]) -> list[Any]:
                ordered = [inputs[i] for i in range(len(values))]
                outputs, _ = evaluate_tapped(body, ordered, inner, sinks, read)
                return [outputs[k] for k in boundary.outputs]

            (cotangents,) = jax.vjp(forward, sinks)[1](g)
            return [cotangents[i][k] for k in (0, 1) for i in range(len(uses))]

        def type_of(var: Any) -> Any:
            return retyped(var.aval, var.aval.shape, self.loss.mesh)

        more = [*self.factors, self.keep]
        types = Leaves(
            [type_of(body.jaxpr.invars[i]) for i in known],
            [
                [type_of(body.jaxpr.invars[i]) for i in boundary.examples],
                [type_of(boundary.eqn.outvars[k]) for k in boundary.outputs],
                [retyped(x, (), None) for x in more],
                [retyped(x, (), None) for x in self.numbers],
            ],
            [],
            [],
        )
        with boundary.eqn.ctx.manager:
            program = trace(one, types, self.loss.mesh, to_batch=True)
        run = over_examples(program.jaxpr, self.layout, summed=len(uses))
        examples = [*reading.h, *reading.g, *more, *self.numbers]
        outputs = run(program.jaxpr.consts, [values[i] for i in known], examples, [])
        pairs = zip(outputs[: len(uses)], outputs[len(uses) :], strict=True)
        return {use.path: list(pair) for (use, _, _), pair in zip(uses, pairs, strict=True)}


def _inside(use: Use, boundary: Boundary) -> Use:
    """A use as seen from inside a remat: only the loops within it count."""
    loops = tuple(step for step in use.view if isinstance(step, LoopEntry))
    inner = loops[len(boundary.lengths) :]
    return dataclasses.replace(use, path=use.path[len(boundary.path) :], view=inner)
