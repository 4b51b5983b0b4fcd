"""`model_state`: arrays that the model reads and nobody trains, such as frozen batch statistics.

The loss is called with the same arrays at every step. They are treated like frozen parameters: they
have no gradient, noise or optimizer state, they are in no checkpoint, and a run resumes only with
the arrays that it was started with. Statistics that are updated from the training data would be
released without noise, so a loss that returns an updated state is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bevel.errors import FixArgumentsError, FixLossError
from bevel.training.state import path_text

PyTree = Any
NAME = "model_state"
# Leaves of a tree, by their path below some node of it.
_Leaves = Mapping[tuple[str, ...], Any]


def as_arrays(model_state: PyTree) -> PyTree:
    """Converts the leaves to arrays. Typed random keys are arrays too."""

    def array(path: Any, leaf: Any) -> jax.Array:
        try:
            return jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise FixArgumentsError(
                f"{NAME} contains a {type(leaf).__name__} at {path_text(path)!r}, but it is passed "
                "to the compiled step, so its leaves must be arrays. Close over what is not."
            ) from error

    return jax.tree_util.tree_map_with_path(array, model_state)


def check_unchanged(aux: PyTree, model_state: PyTree) -> None:
    """Raises if a loss returns an updated model state in `aux`.

    An update is an entry of `aux` with the name "model_state", or one with the names and shapes of
    the whole model state or of one of its collections ("batch_stats"), as `mutable=` of Flax
    returns it. Arrays that are returned as they were passed are no update.
    """
    if model_state is None:
        return
    given, returned = _leaves(model_state), _leaves(aux)
    known = {id(leaf) for leaf in given.values()}
    found = next(_updates(returned, given, known), None)
    if found is not None:
        where = "/".join(found) or "as a whole"
        raise FixLossError(
            f"loss_fn returns a new {NAME} in aux ({where}), but {NAME} is read-only: an update "
            "from the training data would be released without noise. Use GroupNorm or LayerNorm "
            "instead of BatchNorm, or freeze the statistics (use_running_average=True). If this is "
            "a metric, give it another name."
        )


def _updates(returned: _Leaves, given: _Leaves, known: set[int]) -> Iterator[tuple[str, ...]]:
    """Yields the places in `aux` that hold an updated state."""
    for path, leaf in returned.items():
        if NAME in path and id(leaf) not in known:
            yield path[: path.index(NAME) + 1]
    states = [given, *(_below(given, (name,)) for name in {path[0] for path in given if path})]
    nodes = {path[:depth] for path in returned for depth in range(len(path) + 1)}
    for node in sorted(nodes):
        below = _below(returned, node)
        for state in states:
            same = all(
                path in below and jnp.shape(below[path]) == jnp.shape(leaf)
                for path, leaf in state.items()
            )
            changed = same and any(id(below[path]) not in known for path in state)
            if changed and _is_distinctive(state):
                yield node


def _is_distinctive(state: _Leaves) -> bool:
    """Whether metrics are unlikely to have the paths of these leaves by accident."""
    named = any(not part.isdigit() for path in state for part in path)
    return named and (len(state) > 1 or any(len(path) > 1 for path in state))


def _leaves(tree: PyTree) -> dict[tuple[str, ...], Any]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {tuple(path_text((key,)) for key in path): leaf for path, leaf in paths}


def _below(leaves: _Leaves, node: tuple[str, ...]) -> _Leaves:
    depth = len(node)
    return {path[depth:]: leaf for path, leaf in leaves.items() if path[:depth] == node}
