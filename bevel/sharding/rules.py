"""Rules that map the path of a parameter to its PartitionSpec: patterns and presets."""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bevel.checks import function, instance, shown, text, whole_number
from bevel.errors import FixArgumentsError
from bevel.sharding.tables import shown_spec
from bevel.sharding.types import spec_axes


class RuleLeaf(NamedTuple):
    """What a rule knows about one parameter."""

    path: str  # parts joined by "/"
    shape: tuple[int, ...]
    names: tuple[Any, ...] | None = None  # the axis names that Flax stores with it
    siblings: tuple["RuleLeaf", ...] = ()  # the leaves of the same layer
    traced: bool = False  # a value inside jit


class SpecChoice(NamedTuple):
    """The spec that a rule chooses for a leaf, and the reason if it is not obvious."""

    spec: P
    reason: str = ""


Meshes = Mesh | AbstractMesh
Pattern = str | re.Pattern[str]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A pattern for paths, and a function that chooses a spec for each matching leaf.

    `choose(leaf, mesh)` returns None to leave a leaf to the next rule.
    """

    pattern: Pattern
    choose: Callable[[RuleLeaf, Meshes], SpecChoice | None]
    name: str

    def __post_init__(self) -> None:
        instance(
            "pattern", self.pattern, str | re.Pattern, "a pattern of paths, or re.compile(...)"
        )
        function("choose", self.choose, "pass a function of a leaf and a mesh")
        instance("name", self.name, str, "a string")

    def matches(self, path: str) -> bool:
        if isinstance(self.pattern, str):
            return fnmatch.fnmatchcase(path, self.pattern)
        return self.pattern.search(path) is not None


Rules = str | P | Rule | Mapping[Pattern, Any] | Sequence[Any]


def rules_of(rules: Rules) -> list[Rule]:
    """Parses rules: a preset, one spec for all leaves, a list of pairs, or a dict."""
    if isinstance(rules, str | P | Rule):
        return [_rule_of(rules)]
    items = rules.items() if isinstance(rules, Mapping) else rules
    try:
        return [_rule_of(item) for item in items]
    except TypeError as error:
        raise FixArgumentsError(_not_a_rule(rules)) from error


def _rule_of(item: Any) -> Rule:
    """Parses one rule: a preset, a spec for all paths, or a pair of a pattern and one of these."""
    if isinstance(item, Rule):
        return item
    if isinstance(item, P):
        return _fixed("*", item)
    if isinstance(item, str):
        if item not in PRESETS:
            raise FixArgumentsError(
                f"{shown(item)} is not a preset; these are {', '.join(PRESETS)}. To match a path, "
                f"write a pair: ({shown(item)}, PartitionSpec(...))."
            )
        return PRESETS[item]()
    pattern, value = item if isinstance(item, tuple | list) and len(item) == 2 else (None, None)
    if not isinstance(pattern, str | re.Pattern) or not isinstance(value, str | P | Rule):
        raise FixArgumentsError(_not_a_rule(item))
    if isinstance(value, P):
        return _fixed(pattern, value)
    rule = _rule_of(value)
    return dataclasses.replace(rule, pattern=pattern, name=f"{_pattern_text(pattern)}: {rule.name}")


def _not_a_rule(value: Any) -> str:
    return (
        f"{shown(value)} is not a rule. Write a pair of a glob (or a compiled regular expression) "
        "and a spec, such as ('*/kernel', PartitionSpec(None, 'model')), or a preset: "
        "'replicated', 'fsdp', 'tensor', fsdp(...), tensor(...) or logical(...)."
    )


def _pattern_text(pattern: Pattern) -> str:
    return pattern if isinstance(pattern, str) else f"/{pattern.pattern}/"


def _fixed(pattern: Pattern, spec: P) -> Rule:
    """A rule with the same spec for every leaf that the pattern matches."""
    name = f"{_pattern_text(pattern)}: {shown_spec(spec)}"
    return Rule(pattern, lambda leaf, mesh: SpecChoice(spec), name)


def replicated() -> Rule:
    """Replicates every parameter on all devices."""
    return dataclasses.replace(_fixed("*", P()), name="replicated")


def fsdp(
    axis: str | tuple[str, ...] = "data", *, min_size: int = 4096, after: Rules | None = None
) -> Rule:
    """Splits each parameter over the axis that carries the batch (fully sharded data parallelism).

    This saves memory and costs communication. The largest dimension that the axis divides is
    split; of several equal ones, the first.

    Args:
      axis: a mesh axis, or several that act as one.
      min_size: parameters with fewer elements are not split.
      after: rules to apply first, such as `tensor()`. This rule then splits one of the dimensions
        that they leave unsplit.
    """
    for name in axis if isinstance(axis, tuple) and axis else (axis,):
        text("axis", name)
    whole_number("min_size", min_size, 0)
    earlier = rules_of(after) if after is not None else []

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
        first = first_choice(earlier, leaf, mesh)
        shards = math.prod(_mesh_size(mesh, a, "fsdp") for a in spec_axes(axis))
        entries = list(first.spec.partitions)
        entries += [None] * (len(leaf.shape) - len(entries))
        if math.prod(leaf.shape) < min_size or len(entries) > len(leaf.shape):
            return SpecChoice(first.spec, first.reason or f"fewer than {min_size} elements")
        unsplit = [d for d, entry in enumerate(entries) if not spec_axes(entry)]
        even = [d for d in unsplit if leaf.shape[d] % shards == 0]
        if not even:
            return SpecChoice(first.spec, f"no unsplit dimension is divisible by {shards}")
        entries[max(even, key=lambda d: leaf.shape[d])] = axis
        return SpecChoice(P(*entries), first.reason)

    name = "fsdp" if after is None else "fsdp after " + ", ".join(r.name for r in earlier)
    return Rule("*", choose, name)


# Names of layers that come second in a pair: they contract the dimension that the first one splits.
SECOND = re.compile(
    r"(^|[/.])(o|out|output|o_proj|out_proj|c_proj|proj|\w+_out|down|down_proj|wo|w2|fc2|dense_2)"
    r"([/.]|$)"
)


def tensor(axis: str = "model", *, second: Pattern = SECOND) -> Rule:
    """Splits matrix products over an axis (tensor parallelism).

    Layers are split in pairs: the outputs of the first and the inputs of the second. The last two
    dimensions of a parameter are its inputs and outputs, and the larger one is split, so layers of
    width D and 4 D need one sum for each pair. If both are equal, outputs are split unless the path
    matches `second`. A vector is split like the outputs of a matrix in the same layer. Without such
    a matrix, as in a normalisation layer, it is replicated.

    The choice affects only communication, never the result.
    """
    text("axis", axis)
    is_second = Rule(second, lambda leaf, mesh: None, "")

    def split(leaf: RuleLeaf, mesh: Meshes) -> int | None:
        """The dimension of a matrix that is split, counted from the end."""
        shards = _mesh_size(mesh, axis, "tensor")
        inputs, outputs = leaf.shape[-2:]
        inputs_first = inputs > outputs or (inputs == outputs and is_second.matches(leaf.path))
        order = (-2, -1) if inputs_first else (-1, -2)
        return next((d for d in order if leaf.shape[d] % shards == 0), None)

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
        size = f"{axis}={_mesh_size(mesh, axis, 'tensor')}"
        if len(leaf.shape) >= 2:
            d = split(leaf, mesh)
            if d is None:
                return SpecChoice(P(), f"neither of {leaf.shape[-2:]} is divisible by {size}")
            tail = [None, axis] if d == -1 else [axis]
            return SpecChoice(P(*[None] * (len(leaf.shape) - 2), *tail))
        for other in leaf.siblings:
            if (
                len(other.shape) >= 2
                and other.shape[-1:] == leaf.shape
                and split(other, mesh) == -1
            ):
                return SpecChoice(P(axis))
        return SpecChoice(P(), "no matrix in this layer has outputs of this size that are split")

    return Rule("*", choose, "tensor")


def logical(axes: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Rule:
    """Maps the axis names that Flax stores with a parameter to mesh axes.

    Args:
      axes: a dict such as {"embed": "data", "mlp": "model", "heads": None}, or pairs as in Linen.
        A name that is not listed must be an axis of the mesh.

    Leaves without axis names are left to the next rule.
    """
    try:
        table = dict(axes)
    except Exception as error:  # whatever the value raises when it is read
        raise FixArgumentsError(
            f"axes={shown(axes)}: pass a dict of axis names, such as {{'embed': 'data'}}."
        ) from error
    for name, target in table.items():
        text("a name of an axis", name)
        for part in target if isinstance(target, tuple | list) else (target,):
            instance("an axis of the mesh", part, str | None, "a name, or None")

    def choose(leaf: RuleLeaf, mesh: Meshes) -> SpecChoice | None:
        if leaf.names is None:
            return None
        entries = []
        for name in leaf.names:
            if name is not None and name not in table and name not in mesh.shape:
                raise FixArgumentsError(
                    f"{leaf.path} names an axis {name!r}, which is neither in logical({table}) "
                    f"nor an axis of the mesh {tuple(mesh.axis_names)}: add it to logical, with "
                    "None if it should not be split."
                )
            entry = table.get(name, name)
            entries.append(tuple(entry) if isinstance(entry, list) else entry)
        return SpecChoice(P(*entries))

    return Rule("*", choose, "logical axes")


PRESETS: dict[str, Callable[[], Rule]] = {"replicated": replicated, "fsdp": fsdp, "tensor": tensor}


def first_choice(rules: Sequence[Rule], leaf: RuleLeaf, mesh: Meshes) -> SpecChoice:
    """The choice of the first rule that matches and does not pass; replicated without one."""
    choices = (rule.choose(leaf, mesh) for rule in rules if rule.matches(leaf.path))
    return next((choice for choice in choices if choice is not None), SpecChoice(P()))


def _mesh_size(mesh: Meshes, axis: str, preset: str) -> int:
    if axis not in mesh.shape:
        raise FixArgumentsError(
            f"{preset} splits over the axis {axis!r}, but the mesh has {tuple(mesh.axis_names)}: "
            f"write {preset}(axis=...), or create the mesh with {axis}=1."
        )
    return mesh.shape[axis]
