"""Check what devices send: gathered weights, random numbers, sums in low precision."""

import re
from collections.abc import Iterator

import jax

from bevel.inspection.checks.origins import origin
from bevel.inspection.compiled_step import Argument, CompiledStep
from bevel.inspection.findings import Finding
from bevel.inspection.step_report import Collective
from bevel.sharding.tables import short

# Names of JAX's random functions, as they appear in the `op_name` of an operation.
RANDOM = re.compile(
    r"threefry|rng_bit_generator|random_(bits|split|fold_in|wrap|unwrap|seed|gamma)"
    r"|jit\(_?(uniform|normal\w*|truncated_normal|bernoulli|randint|gumbel|bits|laplace|exponential"
    r"|categorical|choice|permutation|shuffle|gamma|beta|cauchy|rademacher|poisson|multivariate\w*"
    r"|maxwell|t|orthogonal|dirichlet|loggamma|logistic|pareto|rayleigh|ball)\)"
)


def gathered_weights(step: CompiledStep) -> Iterator[Finding]:
    """Parameters that are split over devices but gathered in every step."""
    found: dict[str, tuple[Argument, list[Collective]]] = {}
    for c in step.report.collectives:
        if c.kind == "all-gather" and c.times and c.group_size > 1:
            for path in filter(None, (origin(step.module, c.computation, o) for o in c.operands)):
                argument = step.argument(path)
                if argument is not None and argument.is_param:
                    found.setdefault(path, (argument, []))[1].append(c)
    for path, (argument, gathers) in found.items():
        sent = sum(c.times * c.sent / len(c.operands) for c in gathers)
        if sent < step.limits.sent:
            continue
        axes = sorted({axis for c in gathers for axis in c.axes or ()})
        over, times = ", ".join(axes), sum(c.times for c in gathers)
        what = f"{path} {argument.shape} is split as {argument.spec} and gathered over {over}, "
        what += f"{times} times in a step; a device sends {short(sent, 'B')}"
        if axes and set(axes) <= step.batch_axes:
            severity = "note"
            fix = "this is the cost of fully sharded data parallelism: keep it if memory is short, "
            fix += f"otherwise replicate the parameter over {over}"
        else:
            severity = "warning"
            fix = "split it along a dimension that the product does not contract, constrain the "
            fix += f"activations that it meets, or replicate it over {over}"
        yield Finding(severity, "gathered weight", what, fix, gathers[0].line, sent)


def random_numbers(step: CompiledStep) -> Iterator[Finding]:
    """Random numbers that devices send to each other instead of generating their own."""
    found: dict[str, list[Collective]] = {}
    for c in step.report.collectives:
        if c.times and c.group_size > 1 and _is_random(step, c):
            found.setdefault(str(c.line), []).append(c)
    for moved in found.values():
        sent = sum(c.times * c.sent for c in moved)
        kinds = ", ".join(sorted({c.kind for c in moved}))
        what = f"random numbers are communicated ({kinds}); a device sends {short(sent, 'B')}"
        if jax.config.jax_threefry_partitionable:
            fix = "generate them with the sharding in which they are used, or add noise with "
            fix += "bevel.noise_addition, which needs no communication"
        else:
            fix = "set jax.config.update('jax_threefry_partitionable', True), which changes the "
            fix += "numbers"
        yield Finding("warning", "random numbers", what, fix, moved[0].line, sent)


def _is_random(step: CompiledStep, c: Collective) -> bool:
    """Whether a collective is part of a random function, or moves its result."""
    operations = [c.operation]
    if c.reducer is None:
        instructions = step.module.computations[c.computation].instructions
        operations += [instructions[name].attribute("metadata") or "" for name in c.operands]
    return any(map(RANDOM.search, operations))


def narrow_sums(step: CompiledStep) -> Iterator[Finding]:
    """Sums over devices in less than float32, where each device adds a rounding error."""
    found: dict[tuple[str, bool], list[Collective]] = {}
    for c in step.report.collectives:
        if c.times and c.is_narrow_sum:
            of_examples = bool(step.batch_axes & set(c.axes or ()))
            found.setdefault((str(c.line), of_examples), []).append(c)
    for (_, of_examples), sums in found.items():
        first = sums[0]
        axes = ", ".join(sorted({axis for c in sums for axis in c.axes or ()}))
        dtype = "less than float32" if first.is_widened else first.dtype
        what = f"a sum over {axes} ({first.group_size} devices) is computed in {dtype}"
        if first.is_widened:
            what += " (this backend uses float32; a GPU does not)"
        if of_examples:
            severity = "warning"
            what += ". It adds examples, so its error grows with the mesh"
            fix = "cast to float32 before the sum (preferred_element_type=jnp.float32 for a "
            fix += "product), as bevel.clipped_grad does"
        else:
            severity = "note"
            fix = "usual for activations; preferred_element_type=jnp.float32 sums in float32"
        yield Finding(severity, "narrow sum", what, fix, first.line)
