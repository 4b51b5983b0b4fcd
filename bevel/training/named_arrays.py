"""Arrays by path, and the trees that they are the leaves of."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.training.state import path_text

PyTree = Any


def arranged(
    arrays: Mapping[str, np.ndarray], like: PyTree, name_of: Callable[[Any], str] = path_text
) -> PyTree:
    """Returns arrays by path ("dense/0/w") as a tree: that of `like`, or dicts of dicts.

    Leaves of `like` without an array, such as frozen parameters, stay as they are. An array whose
    path is empty is the whole tree. `name_of` gives the name of a leaf of `like` from its path.
    """
    if like is None:
        return _dicts_of(arrays)
    left = dict(arrays)

    def leaf(path: Any, given: Any) -> Any:
        name = name_of(path)
        found = left.pop(name, None)
        if found is not None and found.shape != np.shape(given):
            raise FixArgumentsError(
                f"like has shape {np.shape(given)} at {name!r}, but the run has "
                f"{found.shape}: pass parameters of the model that the run trained."
            )
        return given if found is None else found

    tree = jax.tree_util.tree_map_with_path(leaf, like)
    if left:
        raise FixArgumentsError(
            f"like lacks the parameters {', '.join(list(left)[:6])} of the run: pass parameters of "
            "the model that the run trained."
        )
    return tree


def _dicts_of(arrays: Mapping[str, np.ndarray]) -> PyTree:
    if list(arrays) == [""]:
        return arrays[""]
    tree: dict[str, Any] = {}
    for path, x in arrays.items():
        *parents, name = path.split("/")
        node: Any = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise _two_at_once(path)
        if name in node:
            raise _two_at_once(path)
        node[name] = x
    return tree


def _two_at_once(path: str) -> FixArgumentsError:
    return FixArgumentsError(
        f"the parameters have two entries at {path!r}, because a name contains a slash. Pass "
        "like=, parameters with the structure that the run was started with."
    )
