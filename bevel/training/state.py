"""What a step takes and gives, and which part of the parameters it trains."""

import dataclasses
import fnmatch
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bevel.errors import FixArgumentsError

PyTree = Any
Trainable = Callable[[str], bool] | str | tuple[str, ...] | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingState:
    """All that a run goes on from, apart from its secrets.

    Not for release as a whole: the state of correlated noise holds noise that was added. What may
    be shown is `ReleasedState`, which callbacks get.

    Attributes:
      step: steps that were taken.
      params: of the model, those that are frozen included.
      opt_state: of the optimizer, for the trainable parameters.
      noise_state: of the plan's noise. Private, though it does not hold the key.
      average: of the trainable parameters over past steps (`ema_decay`), or None.
    """

    step: Any
    params: PyTree
    opt_state: PyTree
    noise_state: PyTree
    average: PyTree = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedState:
    """The half of a state that may be shown to anyone: a function of the noised outputs alone.

    Attributes:
      step, params, opt_state, average: as in `TrainingState`.
      clip_norm: of the next step, where it adapts (its count is noised); otherwise None.
    """

    step: Any
    params: PyTree
    opt_state: PyTree
    average: PyTree = None
    clip_norm: Any = None

    @property
    def evaluated(self) -> PyTree:
        """The parameters to evaluate: their average, where there is one."""
        if self.average is None:
            return self.params
        return jax.tree.map(
            lambda average, p: p if average is None else average,
            self.average,
            self.params,
            is_leaf=lambda x: x is None,
        )


def split(params: PyTree, trainable: Trainable) -> tuple[PyTree, PyTree]:
    """The trainable and the frozen parameters: two trees like `params`, None for the others.

    `trainable` is a function of a parameter's path ("encoder/0/kernel"), or one or more patterns
    such as "*/lora_*" that it must match; None trains everything.
    """
    chosen = _chooser(trainable)
    paths = jax.tree_util.tree_map_with_path(lambda path, _: chosen(path_text(path)), params)
    if not any(jax.tree.leaves(paths)):
        names = [path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise FixArgumentsError(
            f"trainable={trainable!r} matches none of the parameters: {', '.join(names[:12])}."
        )
    kept = jax.tree.map(lambda yes, x: x if yes else None, paths, params)
    frozen = jax.tree.map(lambda yes, x: None if yes else x, paths, params)
    return kept, frozen


def joined(trainable: PyTree, frozen: PyTree) -> PyTree:
    """The parameters that `split` took apart."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, trainable, frozen, is_leaf=lambda x: x is None
    )


def _chooser(trainable: Trainable) -> Callable[[str], bool]:
    if trainable is None:
        return lambda path: True
    if callable(trainable):
        return lambda path: bool(trainable(path))
    patterns = (trainable,) if isinstance(trainable, str) else tuple(trainable)
    return lambda path: any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def path_text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def copied(tree: PyTree) -> PyTree:
    """New arrays: a step gives the memory of its state away, and the caller keeps the original."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def on_mesh(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Arrays that lie on one device, replicated over the mesh; the others as they are."""
    if mesh is None:
        return tree

    def place(x: jax.Array) -> jax.Array:
        known = isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh
        return x if known else jax.device_put(x, NamedSharding(mesh, PartitionSpec()))

    return jax.tree.map(place, tree)
