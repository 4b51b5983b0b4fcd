"""Place a tree of arrays on a mesh, by rules that map leaf paths to PartitionSpecs."""

import dataclasses
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding.flax_boxes import axis_names, boxed_like, is_box, unboxed
from bevel.sharding.rules import Meshes, Rule, RuleLeaf, Rules, SpecChoice, rules_of
from bevel.sharding.same_values import put_same
from bevel.sharding.tables import shown_shape, shown_spec, text_table
from bevel.sharding.types import explicit_axes, manual_axes, spec_axes

PyTree = Any


@dataclasses.dataclass(frozen=True)
class _PlacedLeaf:
    """The spec of one leaf, the rule that chose it, and why it differs from the rule, if so."""

    path: str
    shape: tuple[int, ...]
    spec: P
    rule: str
    reason: str = ""
    fell_back: bool = False  # the spec differs from the rule, because a dimension is uneven


@dataclasses.dataclass(frozen=True)
class Placement:
    """The sharding of every leaf of a tree, before anything is moved. Print it to see a table.

    `specs` and `shardings` have the structure of the tree (or are prefixes of it, where Flax keeps
    leaves in boxes). Pass them as `in_shardings` of `jit`, as `in_specs` of `shard_map`, or as
    `specs` of a privatizer.
    """

    rows: tuple[_PlacedLeaf, ...]
    specs: PyTree
    shardings: PyTree

    def __str__(self) -> str:
        cells = [
            [row.path, shown_shape(row.shape), shown_spec(row.spec), row.rule, row.reason]
            for row in self.rows
        ]
        return text_table(["path", "shape", "spec", "rule", "why"], cells)


def place(tree: PyTree, mesh: Meshes, rules: Rules = "replicated") -> PyTree:
    """Places a tree on a mesh: the first rule that matches a leaf's path gives its spec.

    Args:
      tree: arrays (NumPy arrays and arrays on other devices included), numbers, or
        `jax.ShapeDtypeStruct`s, which are returned with a sharding. Flax boxes are kept.
      mesh: from `make_mesh`. An abstract mesh is enough for `jax.ShapeDtypeStruct`s.
      rules: pairs of a pattern and a PartitionSpec, tried in order. A pattern is a glob for the
        whole path, such as "layers/*/kernel" (`*` also matches "/"), or a compiled regular
        expression that is searched in the path. In place of a spec, or of the whole list, you can
        pass 'replicated', 'fsdp', 'tensor' or the result of `fsdp(...)`, `tensor(...)` or
        `logical(...)`.

    Scalars are always replicated. If a dimension is not divisible by its mesh axes, it is split
    over as many of the leading axes as divide it, possibly none, and a warning says so. It is an
    error if a rule matches no leaf or only leaves that earlier rules match, if no rule matches a
    leaf, if the mesh lacks an axis, or if a spec is longer than the shape.

    Values do not change. Inside `jit`, this applies `with_sharding_constraint` to each leaf, or
    `reshard` on Explicit axes, and uses specs as they are, even if they are uneven. With several
    processes, each must pass the same values.
    """
    return placed_by(_put, tree, mesh, rules)


def placed_by(
    put: Callable[[Any, NamedSharding], Any], tree: PyTree, mesh: Meshes, rules: Rules
) -> PyTree:
    """`place` with `put(leaf, sharding)` in place of `jax.device_put`."""
    placement = plan_placement(tree, mesh, rules)
    uneven = [f"{row.path} {row.shape}: {row.reason}" for row in placement.rows if row.fell_back]
    if uneven:
        warnings.warn("place: " + "; ".join(uneven), stacklevel=3)
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_box)
    shardings = jax.tree.leaves(placement.shardings)
    placed = [
        boxed_like(leaf, put(unboxed(leaf), sharding))
        for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    return jax.tree.unflatten(structure, placed)


def _put(leaf: Any, sharding: NamedSharding) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        options = {"weak_type": leaf.weak_type, "sharding": sharding}
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, **options)
    if not isinstance(sharding.mesh, Mesh):
        raise FixArgumentsError(
            "the mesh is abstract, so arrays cannot be placed on it: pass jax.ShapeDtypeStructs "
            "(from jax.eval_shape), or a mesh from bevel.sharding.make_mesh."
        )
    if isinstance(leaf, jax.core.Tracer):
        return _constrain(leaf, sharding)
    return put_same(leaf, sharding)


def _constrain(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Shards a value inside `jit`, where `device_put` does nothing on Auto axes."""
    explicit = explicit_axes(sharding.mesh)
    if manual_axes():
        raise FixArgumentsError(
            "place was called inside shard_map, where a value is the shard of one device. Place "
            "the arguments of the shard_map, or use the collectives of jax.lax."
        )
    if not explicit:
        return jax.lax.with_sharding_constraint(x, sharding)
    if len(explicit) == len(sharding.mesh.axis_names):
        return jax.sharding.reshard(x, sharding)
    raise FixArgumentsError(
        f"place was called inside jit on a mesh with Explicit axes {explicit} and Auto axes: use "
        "jax.sharding.reshard for the Explicit axes and jax.lax.with_sharding_constraint for the "
        "others."
    )


def plan_placement(tree: PyTree, mesh: Meshes, rules: Rules = "replicated") -> Placement:
    """The sharding that `place` would give each leaf, and the rule. Reads only shapes."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)
    leaves = _with_siblings([_leaf_of(path, leaf) for path, leaf in flat])
    parsed = rules_of(rules)
    rows = tuple(_placed_leaf(leaf, mesh, parsed) for leaf in leaves)
    _check_every_rule_is_used(parsed, rows, leaves, mesh)
    specs = jax.tree.unflatten(structure, [row.spec for row in rows])
    shardings = jax.tree.unflatten(structure, [NamedSharding(mesh, row.spec) for row in rows])
    return Placement(rows, specs, shardings)


def _leaf_of(path: tuple[Any, ...], leaf: Any) -> RuleLeaf:
    where = jax.tree_util.keystr(path, simple=True, separator="/")
    value = unboxed(leaf)
    if not isinstance(value, bool | int | float | complex | np.generic) and not (
        hasattr(value, "shape") and hasattr(value, "dtype")
    ):
        raise FixArgumentsError(
            f"{where or 'the tree'} is a {type(value).__name__}, not an array: separate arrays "
            "from other leaves first, for example with equinox.partition or flax.nnx.split."
        )
    traced = isinstance(value, jax.core.Tracer)
    return RuleLeaf(where, tuple(np.shape(value)), axis_names(leaf), traced=traced)


def _with_siblings(leaves: Sequence[RuleLeaf]) -> list[RuleLeaf]:
    """Gives each leaf the leaves of its layer: those whose paths differ only in the last part."""
    layers = defaultdict[str, list[RuleLeaf]](list)
    for leaf in leaves:
        layers[leaf.path.rpartition("/")[0]].append(leaf)
    return [leaf._replace(siblings=tuple(layers[leaf.path.rpartition("/")[0]])) for leaf in leaves]


def _placed_leaf(leaf: RuleLeaf, mesh: Meshes, rules: Sequence[Rule]) -> _PlacedLeaf:
    """Applies the first rule that matches a leaf."""
    for rule in rules:
        choice = rule.choose(leaf, mesh) if rule.matches(leaf.path) else None
        if choice is None:
            continue
        if not leaf.shape:
            return _PlacedLeaf(leaf.path, (), P(), rule.name, "a scalar")
        spec, uneven = _checked_spec(choice, leaf, mesh, rule), ""
        if not leaf.traced:
            # A loss may be traced for one example, whose shape need not divide.
            spec, uneven = _drop_uneven_axes(spec, leaf.shape, mesh)
        spec = _without_trailing_none(spec)
        reason = "; ".join(filter(None, (choice.reason, uneven)))
        return _PlacedLeaf(leaf.path, leaf.shape, spec, rule.name, reason, bool(uneven))
    if not leaf.shape:
        return _PlacedLeaf(leaf.path, (), P(), "none", "a scalar")
    raise FixArgumentsError(
        f"no rule matches {leaf.path!r} of shape {leaf.shape}. Add one. To replicate all leaves "
        "that no other rule matches, end the list with ('*', PartitionSpec())."
    )


def _checked_spec(choice: SpecChoice, leaf: RuleLeaf, mesh: Meshes, rule: Rule) -> P:
    """The spec of a choice. Raises if this leaf cannot have it on this mesh."""
    spec = choice.spec
    leaf_and_spec = f"{leaf.path!r} of shape {leaf.shape} the spec {shown_spec(spec)}"
    found = f"the rule {rule.name!r} gives {leaf_and_spec}"
    if len(spec.partitions) > len(leaf.shape):
        raise FixArgumentsError(
            f"{found}, which has more dimensions than the leaf. Put a rule for this leaf before "
            "it, or narrow its pattern."
        )
    used = [axis for entry in spec.partitions for axis in spec_axes(entry)]
    unknown = [axis for axis in used if axis not in mesh.shape]
    if unknown:
        raise FixArgumentsError(
            f"{found}, but the mesh has axes {tuple(mesh.axis_names)}. Create it with "
            f"{','.join(f'{axis}=1' for axis in unknown)}, or change the rule."
        )
    if len(set(used)) < len(used):
        raise FixArgumentsError(f"{found}, which names an axis twice.")
    if any(entry is P.UNCONSTRAINED for entry in spec.partitions):
        raise FixArgumentsError(
            f"{found}: UNCONSTRAINED has no meaning for an array. Write None or an axis."
        )
    return spec


def _without_trailing_none(spec: P) -> P:
    """The spec in the form that JAX gives its results, so that a step is compiled only once."""
    entries = list(spec.partitions)
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def _drop_uneven_axes(spec: P, shape: tuple[int, ...], mesh: Meshes) -> tuple[P, str]:
    """The spec without axes that do not divide their dimension, and what was dropped."""
    entries, dropped = list[Any](), list[str]()
    for d, entry in enumerate(spec.partitions):
        axes = spec_axes(entry)
        even = axes
        while shape[d] % math.prod(mesh.shape[axis] for axis in even):
            even = even[:-1]
        if even == axes:
            entries.append(entry)
            continue
        sizes = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
        fallback = "is split over " + " x ".join(even) if even else "is not split"
        dropped.append(f"dimension {d} of {shape[d]} is not divisible by {sizes} and {fallback}")
        entries.append(None if not even else even[0] if len(even) == 1 else even)
    return (P(*entries), "; ".join(dropped)) if dropped else (spec, "")


def _check_every_rule_is_used(
    rules: Sequence[Rule], rows: Sequence[_PlacedLeaf], leaves: Sequence[RuleLeaf], mesh: Meshes
) -> None:
    """Raises for a rule that was never used, unless it matches every leaf."""
    used = {row.rule for row in rows}
    for rule in rules:
        if not rows or rule.name in used:
            continue
        paths = [leaf.path for leaf in leaves]
        matched = [x.path for x in leaves if rule.matches(x.path) and rule.choose(x, mesh)]
        if not matched:
            raise FixArgumentsError(
                f"the rule {rule.name!r} matches none of the {len(paths)} leaves. The first are "
                f"{paths[:5]}. Correct the pattern, or remove the rule."
            )
        if len(matched) < len(paths):
            raise FixArgumentsError(
                f"the rule {rule.name!r} is never used: earlier rules match all of its leaves, "
                f"such as {matched[0]!r}. Move it up, or remove it."
            )
