"""Put a tree of arrays on a mesh, by rules from the path of a leaf to its PartitionSpec."""

import dataclasses
import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding.flax_boxes import axis_names, boxed_like, is_box, unboxed
from bevel.sharding.rules import Meshes, Rule, RuleLeaf, Rules, SpecChoice, rules_of
from bevel.sharding.tables import shown_shape, shown_spec, text_table
from bevel.sharding.types import explicit_axes, manual_axes, spec_axes

PyTree = Any


@dataclasses.dataclass(frozen=True)
class _PlacedLeaf:
    """Where one leaf goes, by which rule, and why if not as the rule says."""

    path: str
    shape: tuple[int, ...]
    spec: P
    rule: str
    reason: str = ""
    fell_back: bool = False  # a dimension does not divide, so the spec is not what the rule says


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where every leaf of a tree goes; nothing is moved yet. Print it for a table.

    `specs` and `shardings` are trees like the one that was placed (prefixes of it, where Flax keeps
    leaves in boxes): for `in_shardings`, the `in_specs` of a `shard_map`, or the `specs` of noise.
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
    """The tree, on the mesh: each leaf as the first rule that matches its path says.

    Args:
      tree: arrays (of NumPy too, or on other devices), numbers, or `jax.ShapeDtypeStruct`s, which
        come back with a sharding. Boxes of Flax Linen and NNX are kept.
      mesh: from `make_mesh`. An abstract one does for ShapeDtypeStructs.
      rules: pairs of a pattern and a PartitionSpec, tried in order. A pattern is a glob of the
        whole path, such as "layers/*/kernel" (`*` matches "/" too), or a compiled regular
        expression that is searched in it. Instead of a spec, or of all rules: 'replicated',
        'fsdp', 'tensor', or what `fsdp(...)`, `tensor(...)` and `logical(...)` return.

    A scalar is always replicated. A dimension that does not divide by its axes is split over those
    of them that do divide, or stays whole; a warning says so. Errors: a rule that matches nothing
    or whose leaves are all taken by earlier ones, a leaf that no rule matches, an axis that the
    mesh lacks, a spec that is longer than the shape.

    The values do not change. Inside `jit`, this is `with_sharding_constraint` for each leaf, or
    `reshard` on Explicit axes, and specs are taken as they are, even or not. With several
    processes, each passes the same values.
    """
    placement = plan_placement(tree, mesh, rules)
    uneven = [f"{row.path} {row.shape}: {row.reason}" for row in placement.rows if row.fell_back]
    if uneven:
        warnings.warn("place: " + "; ".join(uneven), stacklevel=2)
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_box)
    shardings = jax.tree.leaves(placement.shardings)
    placed = [
        boxed_like(leaf, _moved(unboxed(leaf), sharding))
        for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    return jax.tree.unflatten(structure, placed)


def _moved(leaf: Any, sharding: NamedSharding) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        kept = {"weak_type": leaf.weak_type, "sharding": sharding}
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, **kept)
    if not isinstance(sharding.mesh, Mesh):
        raise FixArgumentsError(
            "the mesh is abstract, so it holds no arrays: place jax.ShapeDtypeStructs "
            "(jax.eval_shape gives them), or give a mesh from bevel.sharding.make_mesh."
        )
    if isinstance(leaf, jax.core.Tracer):
        return _constrained(leaf, sharding)
    return jax.device_put(leaf, sharding)


def _constrained(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """A value inside `jit`, where `device_put` does nothing on Auto axes."""
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
        f"place was called inside jit on a mesh with Explicit axes {explicit} and Auto ones: write "
        "jax.sharding.reshard for the first and jax.lax.with_sharding_constraint for the others."
    )


def plan_placement(tree: PyTree, mesh: Meshes, rules: Rules = "replicated") -> Placement:
    """Where `place` would put each leaf, and by which rule. Only shapes are read."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)
    leaves = _with_neighbours([_leaf_of(path, leaf) for path, leaf in flat])
    known = rules_of(rules)
    rows = tuple(_placed_leaf(leaf, mesh, known) for leaf in leaves)
    _check_every_rule_is_used(known, rows, leaves, mesh)
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
            f"{where or 'the tree'} is a {type(value).__name__}, not an array: keep apart what is "
            "not placed, as equinox.partition and flax.nnx.split do."
        )
    traced = isinstance(value, jax.core.Tracer)
    return RuleLeaf(where, tuple(np.shape(value)), axis_names(leaf), traced=traced)


def _with_neighbours(leaves: Sequence[RuleLeaf]) -> list[RuleLeaf]:
    """Leaves that know the others of their layer: whose paths differ in the last part only."""
    layers = defaultdict[str, list[RuleLeaf]](list)
    for leaf in leaves:
        layers[leaf.path.rpartition("/")[0]].append(leaf)
    return [leaf._replace(beside=tuple(layers[leaf.path.rpartition("/")[0]])) for leaf in leaves]


def _placed_leaf(leaf: RuleLeaf, mesh: Meshes, rules: Sequence[Rule]) -> _PlacedLeaf:
    """Where one leaf goes."""
    for rule in rules:
        choice = rule.choose(leaf, mesh) if rule.matches(leaf.path) else None
        if choice is None:
            continue
        if not leaf.shape:
            return _PlacedLeaf(leaf.path, (), P(), rule.name, "a scalar")
        spec, uneven = _checked_spec(choice, leaf, mesh, rule), ""
        if not leaf.traced:
            # In a loss that is traced for one example, the batch is yet to come.
            spec, uneven = _fitted(spec, leaf.shape, mesh)
        reason = "; ".join(filter(None, (choice.reason, uneven)))
        return _PlacedLeaf(leaf.path, leaf.shape, _trimmed(spec), rule.name, reason, bool(uneven))
    if not leaf.shape:
        return _PlacedLeaf(leaf.path, (), P(), "none", "a scalar")
    raise FixArgumentsError(
        f"no rule matches {leaf.path!r} of shape {leaf.shape}. Add one; as the last, "
        "('*', PartitionSpec()) keeps all the others whole."
    )


def _checked_spec(choice: SpecChoice, leaf: RuleLeaf, mesh: Meshes, rule: Rule) -> P:
    """The spec of a choice; raises if it cannot be one of this leaf on this mesh."""
    spec = choice.spec
    shown = f"{leaf.path!r} of shape {leaf.shape} the spec {shown_spec(spec)}"
    where = f"the rule {rule.name!r} gives {shown}"
    if len(spec.partitions) > len(leaf.shape):
        raise FixArgumentsError(
            f"{where}, which has more dimensions. Put a rule for this leaf before it, or narrow "
            "its pattern."
        )
    used = [axis for entry in spec.partitions for axis in spec_axes(entry)]
    strange = [axis for axis in used if axis not in mesh.shape]
    if strange:
        raise FixArgumentsError(
            f"{where}, but the mesh has axes {tuple(mesh.axis_names)}. Make it with "
            f"{','.join(f'{axis}=1' for axis in strange)}, or change the rule."
        )
    if len(set(used)) < len(used):
        raise FixArgumentsError(f"{where}, which names an axis twice.")
    if any(entry is P.UNCONSTRAINED for entry in spec.partitions):
        raise FixArgumentsError(f"{where}: an array has a place, so write None or an axis.")
    return spec


def _trimmed(spec: P) -> P:
    """The spec as JAX writes it on what it computes, so that programs are compiled once."""
    entries = list(spec.partitions)
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def _fitted(spec: P, shape: tuple[int, ...], mesh: Meshes) -> tuple[P, str]:
    """The spec with only axes whose sizes divide, and what was dropped."""
    entries, dropped = list[Any](), list[str]()
    for d, entry in enumerate(spec.partitions):
        axes = spec_axes(entry)
        kept = axes
        while shape[d] % math.prod(mesh.shape[axis] for axis in kept):
            kept = kept[:-1]
        if kept == axes:
            entries.append(entry)
            continue
        sizes = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in axes)
        over = "is split over " + " x ".join(kept) if kept else "stays whole"
        dropped.append(f"dimension {d} of {shape[d]} does not divide by {sizes} and {over}")
        entries.append(None if not kept else kept[0] if len(kept) == 1 else kept)
    return (P(*entries), "; ".join(dropped)) if dropped else (spec, "")


def _check_every_rule_is_used(
    rules: Sequence[Rule], rows: Sequence[_PlacedLeaf], leaves: Sequence[RuleLeaf], mesh: Meshes
) -> None:
    """Raises for a rule that decides nothing, unless it is one for all that is left."""
    used = {row.rule for row in rows}
    for rule in rules:
        if not rows or rule.name in used:
            continue
        paths = [leaf.path for leaf in leaves]
        matched = [x.path for x in leaves if rule.matches(x.path) and rule.choose(x, mesh)]
        if not matched:
            raise FixArgumentsError(
                f"the rule {rule.name!r} matches none of the {len(paths)} leaves, of which the "
                f"first are {paths[:5]}: correct it, or remove it."
            )
        if len(matched) < len(paths):
            raise FixArgumentsError(
                f"the rule {rule.name!r} decides nothing: what it matches ({matched[0]!r}) is "
                "taken by rules before it. Put it first, or remove it."
            )
