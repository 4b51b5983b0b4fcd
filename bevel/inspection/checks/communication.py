"""What is sent: gathered weights, random numbers, narrow sums."""

import re
from collections.abc import Iterator

import jax

from bevel.inspection.checks.origins import origin
from bevel.inspection.compiled_step import Argument, CompiledStep
from bevel.inspection.findings import Finding
from bevel.inspection.step_report import Collective
from bevel.sharding.tables import short

# The names of JAX's random functions in the path of an operation.
RANDOM = re.compile(
    r"threefry|rng_bit_generator|random_(bits|split|fold_in|wrap|unwrap|seed|gamma)"
    r"|jit\(_?(uniform|normal\w*|truncated_normal|bernoulli|randint|gumbel|bits|laplace|exponential"
    r"|categorical|choice|permutation|shuffle|gamma|beta|cauchy|rademacher|poisson|multivariate\w*"
    r"|maxwell|t|orthogonal|dirichlet|loggamma|logistic|pareto|rayleigh|ball)\)"
)


def gathered_weights(step: CompiledStep) -> Iterator[Finding]:
    """Parameters that are split over devices, and gathered whole in every step."""
    found: dict[str, tuple[Argument, list[Collective]]] = {}
    for c in step.report.collectives:
        if c.kind == "all-gather" and c.times and c.group_size > 1:
            for path in filter(None, (origin(step.module, c.computation, o) for o in c.operands)):
                argument = step.argument(path)
                if argument is not None and argument.is_param:
                    found.setdefault(path, (argument, []))[1].append(c)
    for path, (argument, gathers) in found.items():
        sent = sum(c.times * c.sent / len(c.operands) for c in gathers)
        if sent < step.limits.moved:
            continue
        axes = sorted({axis for c in gathers for axis in c.axes or ()})
        over, times = ", ".join(axes), sum(c.times for c in gathers)
        what = f"{path} {argument.shape} is split as {argument.spec} and gathered over {over}, "
        what += f"{times} times in a step: {short(sent, 'B')} sent"
        if axes and set(axes) <= step.batch_axes:
            severity = "note"
            fix = "this is what fully sharded data parallelism costs: keep it if memory is short; "
            fix += f"else replicate the parameter over {over}"
        else:
            severity = "warning"
            fix = "split it along the dimension that the product keeps, constrain the activations "
            fix += f"beside it, or replicate it over {over}"
        yield Finding(severity, "gathered weight", what, fix, gathers[0].line, sent)


def random_numbers(step: CompiledStep) -> Iterator[Finding]:
    """Random numbers that devices send one another, in place of drawing their own."""
    found: dict[str, list[Collective]] = {}
    for c in step.report.collectives:
        if c.times and c.group_size > 1 and _is_random(step, c):
            found.setdefault(str(c.line), []).append(c)
    for moved in found.values():
        sent = sum(c.times * c.sent for c in moved)
        kinds = ", ".join(sorted({c.kind for c in moved}))
        what = f"random numbers are communicated ({kinds}): {short(sent, 'B')} sent"
        if jax.config.jax_threefry_partitionable:
            fix = "draw them with the sharding they are used with, or add noise with "
            fix += "bevel.noise_addition, whose numbers depend on their place alone"
        else:
            fix = "jax.config.update('jax_threefry_partitionable', True); the numbers change"
        yield Finding("warning", "random numbers", what, fix, moved[0].line, sent)


def _is_random(step: CompiledStep, c: Collective) -> bool:
    """Whether numbers are moved while they are drawn, or as they were drawn."""
    operations = [c.operation]
    if c.reducer is None:
        made = step.module.computations[c.computation].instructions
        operations += [made[name].attribute("metadata") or "" for name in c.operands]
    return any(map(RANDOM.search, operations))


def narrow_sums(step: CompiledStep) -> Iterator[Finding]:
    """Sums over devices in less than float32: each device adds a rounding error."""
    found: dict[tuple[str, bool], list[Collective]] = {}
    for c in step.report.collectives:
        if c.times and c.is_narrow_sum:
            of_examples = bool(step.batch_axes & set(c.axes or ()))
            found.setdefault((str(c.line), of_examples), []).append(c)
    for (_, of_examples), sums in found.items():
        first = sums[0]
        axes = ", ".join(sorted({axis for c in sums for axis in c.axes or ()}))
        dtype = "less than float32" if first.is_widened else first.dtype
        what = f"a sum of {first.group_size} devices over {axes} is taken in {dtype}"
        if first.is_widened:
            what += " (this backend widens it; a GPU does not)"
        if of_examples:
            severity = "warning"
            what += "; it adds examples, so its error grows with the mesh"
            fix = "cast to float32 before the sum (preferred_element_type=jnp.float32 for a "
            fix += "product): bevel.clipped_grad sums in float32"
        else:
            severity = "note"
            fix = "usual for activations; preferred_element_type=jnp.float32 sums them exactly"
        yield Finding(severity, "narrow sum", what, fix, first.line)
