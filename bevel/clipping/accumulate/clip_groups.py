"""Which leaves are clipped together, and to which norm."""

from typing import Any, NamedTuple

import jax

from bevel.checks import in_one_line
from bevel.clipping.options import Clip
from bevel.errors import FixArgumentsError


class ClipGroups(NamedTuple):
    """The clip norm of each group, and the group of each leaf."""

    clip_norms: list[Any]
    of_leaf: list[int]


def group_by_clip_norm(clip: Clip, out_tree: Any) -> ClipGroups:
    """Assigns each leaf of the result to a clip group, from a prefix tree of clip norms."""
    numbers = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    group_tree: Any = jax.tree.structure(clip.l2_clip_norm)
    groups = jax.tree.unflatten(group_tree, range(group_tree.num_leaves))
    try:
        spread = jax.tree.map(lambda g, sub: jax.tree.map(lambda _: g, sub), groups, numbers)
    except (ValueError, TypeError, KeyError) as error:
        raise FixArgumentsError(
            f"l2_clip_norm has the structure {in_one_line(group_tree, 120)}, which is not a prefix "
            f"of what is clipped, {in_one_line(out_tree, 120)}. Pass one number, or a tree with a "
            "number in place of each subtree that is clipped by itself."
        ) from error
    return ClipGroups(clip.norms, jax.tree.leaves(spread))
