"""From the path of a parameter to its PartitionSpec: patterns, and presets for whole networks."""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding.tables import shown_spec
from bevel.sharding.types import spec_axes


class RuleLeaf(NamedTuple):
    """One parameter, as rules see it."""

    path: str  # parts joined by "/"
    shape: tuple[int, ...]
    names: tuple[Any, ...] | None = None  # of its axes, where Flax keeps them
    beside: tuple["RuleLeaf", ...] = ()  # the other leaves of the same layer
    traced: bool = False  # a value inside jit


class SpecChoice(NamedTuple):
    """What a rule says of a leaf, and why if that is not what its author would expect."""

    spec: P
    reason: str = ""


Meshes = Mesh | AbstractMesh
Pattern = str | re.Pattern[str]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A pattern of paths, and a spec for each leaf that it matches.

    `choose(leaf, mesh)` gives None where the rule has nothing to say: the next one is asked.
    """

    pattern: Pattern
    choose: Callable[[RuleLeaf, Meshes], SpecChoice | None]
    name: str

    def matches(self, path: str) -> bool:
        if isinstance(self.pattern, str):
            return fnmatch.fnmatchcase(path, self.pattern)
        return self.pattern.search(path) is not None


Rules = str | P | Rule | Mapping[Pattern, Any] | Sequence[Any]


def rules_of(given: Rules) -> list[Rule]:
    """Rules, however they are written: a preset, one spec for all, pairs, or a dict of pairs."""
    if isinstance(given, str | P | Rule):
        return [_rule_of(given)]
    items = given.items() if isinstance(given, Mapping) else given
    try:
        return [_rule_of(item) for item in items]
    except TypeError as error:
        raise FixArgumentsError(_wrong_rule(given)) from error


def _rule_of(item: Any) -> Rule:
    """One rule: a preset, a spec for every path, or a pair of a pattern and one of these."""
    if isinstance(item, Rule):
        return item
    if isinstance(item, P):
        return _fixed("*", item)
    if isinstance(item, str):
        if item not in PRESETS:
            raise FixArgumentsError(
                f"{item!r} is no preset: there are {', '.join(PRESETS)}. For a path, write a pair: "
                f"({item!r}, PartitionSpec(...))."
            )
        return PRESETS[item]()
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise FixArgumentsError(_wrong_rule(item))
    pattern, what = item
    if not isinstance(pattern, str | re.Pattern):
        raise FixArgumentsError(_wrong_rule(item))
    if isinstance(what, P):
        return _fixed(pattern, what)
    rule = _rule_of(what) if isinstance(what, str | Rule) else None
    if rule is None:
        raise FixArgumentsError(_wrong_rule(item))
    return dataclasses.replace(rule, pattern=pattern, name=f"{_shown(pattern)}: {rule.name}")


def _wrong_rule(found: Any) -> str:
    return (
        f"{found!r:.100} is no rule: write a pair of a pattern and a spec, "
        "('*/kernel', PartitionSpec(None, 'model')), with a glob or a compiled regular expression, "
        "or a preset: 'replicated', 'fsdp', 'tensor', or what fsdp(...), tensor(...) and "
        "logical(...) return."
    )


def _shown(pattern: Pattern) -> str:
    return pattern if isinstance(pattern, str) else f"/{pattern.pattern}/"


def _fixed(pattern: Pattern, spec: P) -> Rule:
    """The same spec for every leaf that a pattern matches."""

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
        return SpecChoice(spec)

    return Rule(pattern, choose, f"{_shown(pattern)}: {shown_spec(spec)}")


def replicated() -> Rule:
    """Every device holds every parameter."""
    return dataclasses.replace(_fixed("*", P()), name="replicated")


def fsdp(
    axis: str | tuple[str, ...] = "data", *, min_size: int = 4096, after: Rules | None = None
) -> Rule:
    """Splits each parameter over the axis that carries the batch: memory for communication.

    The largest dimension that divides is split, the first of equal ones.

    Args:
      axis: of the mesh; several act as one.
      min_size: parameters with fewer elements stay whole.
      after: rules that come first, such as `tensor()`; of the dimensions that they leave whole,
        one is split.
    """
    earlier = rules_of(after) if after is not None else []

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
        first = first_choice(earlier, leaf, mesh)
        ways = math.prod(_mesh_size(mesh, a, "fsdp") for a in spec_axes(axis))
        entries = list(first.spec.partitions)
        entries += [None] * (len(leaf.shape) - len(entries))
        if math.prod(leaf.shape) < min_size or len(entries) > len(leaf.shape):
            return SpecChoice(first.spec, first.reason or f"fewer than {min_size} elements")
        free = [d for d, entry in enumerate(entries) if not spec_axes(entry)]
        even = [d for d in free if leaf.shape[d] % ways == 0]
        if not even:
            return SpecChoice(first.spec, f"no dimension left that divides by {ways}")
        entries[max(even, key=lambda d: leaf.shape[d])] = axis
        return SpecChoice(P(*entries), first.reason)

    named = "fsdp" if after is None else "fsdp after " + ", ".join(r.name for r in earlier)
    return Rule("*", choose, named)


# Layers that come second in a pair: what the first one split, they contract.
SECOND = re.compile(
    r"(^|[/.])(o|out|output|o_proj|out_proj|c_proj|proj|\w+_out|down|down_proj|wo|w2|fc2|dense_2)"
    r"([/.]|$)"
)


def tensor(axis: str = "model", *, second: Pattern = SECOND) -> Rule:
    """Splits matrix products over an axis, in pairs: outputs of the first, inputs of the second.

    The last two dimensions of a parameter are its inputs and outputs. The larger one is split, so
    a network of width D and 4 D needs one sum for each pair. Of equal ones, outputs are split,
    unless the path matches `second`. A vector goes with the outputs of the matrix beside it, and
    stays whole without one, as in a normalisation.

    The result does not depend on the choice, only the communication does.
    """
    after = Rule(second, lambda leaf, mesh: None, "")

    def split(leaf: RuleLeaf, mesh: Meshes) -> int | None:
        """The dimension of a matrix that is split, counted from the end."""
        ways = _mesh_size(mesh, axis, "tensor")
        inputs, outputs = leaf.shape[-2:]
        inputs_first = inputs > outputs or (inputs == outputs and after.matches(leaf.path))
        order = (-2, -1) if inputs_first else (-1, -2)
        return next((d for d in order if leaf.shape[d] % ways == 0), None)

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
        ways = _mesh_size(mesh, axis, "tensor")
        if len(leaf.shape) >= 2:
            d = split(leaf, mesh)
            if d is None:
                return SpecChoice(P(), f"neither of {leaf.shape[-2:]} divides by {axis}={ways}")
            tail = [None, axis] if d == -1 else [axis]
            return SpecChoice(P(*[None] * (len(leaf.shape) - 2), *tail))
        for other in leaf.beside:
            if (
                len(other.shape) >= 2
                and other.shape[-1:] == leaf.shape
                and split(other, mesh) == -1
            ):
                return SpecChoice(P(axis))
        return SpecChoice(P(), "goes with no outputs that are split")

    return Rule("*", choose, "tensor")


def logical(axes: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Rule:
    """From the names that Flax keeps with a parameter's axes to the axes of the mesh.

    Args:
      axes: {"embed": "data", "mlp": "model", "heads": None}, or Linen's pairs. A name that is
        missing here must be an axis of the mesh.

    Leaves without names are left to the next rule.
    """
    table = dict(axes)

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice | None:
        if leaf.names is None:
            return None
        entries = []
        for name in leaf.names:
            if name is not None and name not in table and name not in mesh.shape:
                raise FixArgumentsError(
                    f"{leaf.path} names an axis {name!r}, which is neither in logical("
                    f"{table}) nor an axis of the mesh {tuple(mesh.axis_names)}: add it, with None "
                    "to leave it whole."
                )
            entry = table.get(name, name)
            entries.append(tuple(entry) if isinstance(entry, list) else entry)
        return SpecChoice(P(*entries))

    return Rule("*", choose, "logical axes")


PRESETS: dict[str, Callable[[], Rule]] = {
    "replicated": replicated,
    "fsdp": fsdp,
    "tensor": tensor,
}


def first_choice(rules: Sequence[Rule], leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
    """What the first rule with something to say says; nothing is split without one."""
    found = (rule.choose(leaf, mesh) for rule in rules if rule.matches(leaf.path))
    return next((choice for choice in found if choice is not None), SpecChoice(P()))


def _mesh_size(mesh: Meshes, axis: str, preset: str) -> int:
    if axis not in mesh.shape:
        raise FixArgumentsError(
            f"{preset} splits over the axis {axis!r}, and the mesh has {tuple(mesh.axis_names)}: "
            f"write {preset}(axis=...), or make the mesh with {axis}=1."
        )
    return mesh.shape[axis]
