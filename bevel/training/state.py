"""The training state, and the split into trainable and frozen parameters."""

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from bevel import precision
from bevel.checks import shown
from bevel.errors import FixArgumentsError

PyTree = Any
# Patterns of paths, a function of a path, or a tree of booleans like the parameters
Trainable = Callable[[str], bool] | str | Sequence[str] | PyTree | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Everything that a run needs to resume, except its secrets.

    Do not release it as a whole: the state of correlated noise contains noise that was added. The
    part that you may show is `ReleasedState`, which callbacks receive.

    Attributes:
      step: the number of steps taken.
      params: the parameters of the model, including frozen ones.
      opt_state: the optimizer state of the trainable parameters.
      noise_state: the state of the plan's noise. Private, although it does not contain the key.
      average: the moving average of the trainable parameters (`ema_decay`) in float32 or wider, or
        None.
      model_state: what the loss reads and nobody trains, or None. No step changes it.
    """

    step: Any
    params: PyTree
    opt_state: PyTree
    noise_state: PyTree
    average: PyTree = None
    model_state: PyTree = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedState:
    """The part of a state that may be shown to anyone: a function of the noised outputs alone.

    Attributes:
      step, params, opt_state, average, model_state: as in `TrainingState`. Like frozen parameters,
        the model state is shown as you passed it.
      clip_norm: with adaptive clipping, the clip norm of the next step, which is computed from a
        noised count. Otherwise None.
    """

    step: Any
    params: PyTree
    opt_state: PyTree
    average: PyTree = None
    clip_norm: Any = None
    model_state: PyTree = None

    @property
    def evaluated(self) -> PyTree:
        """The parameters to evaluate: their average if there is one."""
        if self.average is None:
            return self.params
        return jax.tree.map(
            lambda average, p: p if average is None else average.astype(p.dtype),
            self.average,
            self.params,
            is_leaf=lambda x: x is None,
        )


def split(params: PyTree, trainable: Trainable) -> tuple[PyTree, PyTree]:
    """Splits parameters into two trees like `params`: trainable and frozen, None for the others.

    `trainable` is a function of a parameter's path ("encoder/0/kernel"), one or more patterns of
    which the path must match one, such as "*/lora_*", or a tree of booleans with the structure of
    `params`. None trains all parameters.
    """
    mask = _mask(params, trainable)
    if not any(jax.tree.leaves(mask)):
        names = [path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise FixArgumentsError(
            f"trainable={shown(trainable)} matches none of the parameters: {', '.join(names[:12])}."
        )
    trained = jax.tree.map(lambda is_trained, x: x if is_trained else None, mask, params)
    frozen = jax.tree.map(lambda is_trained, x: None if is_trained else x, mask, params)
    return trained, frozen


def joined(trainable: PyTree, frozen: PyTree) -> PyTree:
    """Joins the two trees that `split` returned."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, trainable, frozen, is_leaf=lambda x: x is None
    )


def trained_paths(params: PyTree, trainable: Trainable) -> list[str]:
    """The paths of the parameters that are trained."""
    trained, _ = split(params, trainable)
    return [path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(trained)]


def widened(tree: PyTree) -> PyTree:
    """Floating-point arrays in at least float32: what the optimizer sees.

    Otherwise its state would begin in bfloat16 and become float32 with the first noised gradient.
    """

    def wide(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x.astype(precision.accumulation_dtype(x.dtype))

    return jax.tree.map(wide, tree)


def _mask(params: PyTree, trainable: Trainable) -> PyTree:
    """A tree of booleans: which parameters are trained."""
    if _is_mask(trainable):
        given: Any = jax.tree.structure(trainable)
        if given != jax.tree.structure(params):
            names = [path_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
            raise FixArgumentsError(
                f"trainable is a tree of {given.num_leaves} booleans, which does not have the "
                f"structure of the {len(names)} parameters ({', '.join(names[:4])}, ...). Pass one "
                "boolean for each, or patterns of paths such as '*/lora_*'."
            )
        return jax.tree.map(bool, trainable)
    matches = _path_predicate(trainable)
    return jax.tree_util.tree_map_with_path(lambda path, _: matches(path_text(path)), params)


def _is_mask(trainable: Trainable) -> bool:
    leaves = jax.tree.leaves(trainable)
    return bool(leaves) and all(isinstance(x, bool | np.bool) for x in leaves)


def _path_predicate(trainable: Trainable) -> Callable[[str], bool]:
    if trainable is None:
        return lambda path: True
    if callable(trainable):
        return lambda path: bool(trainable(path))
    patterns = (trainable,) if isinstance(trainable, str) else trainable
    is_sequence = isinstance(patterns, list | tuple)
    if not is_sequence or not patterns or not all(isinstance(p, str) for p in patterns):
        raise FixArgumentsError(
            f"trainable={shown(trainable)}: pass patterns of paths such as '*/lora_*', a function "
            "of a path, or a tree of booleans with the structure of the parameters."
        )
    return lambda path: any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def path_text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def shaped(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def copied(tree: PyTree) -> PyTree:
    """Copies arrays, so that the caller can keep the originals: a step donates its state."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def sharding_on(mesh: Mesh | None, x: jax.Array) -> Sharding:
    """The sharding of an array on the mesh: its own if it is there, otherwise replicated."""
    if mesh is None or (isinstance(x.sharding, NamedSharding) and x.sharding.mesh == mesh):
        return x.sharding
    return NamedSharding(mesh, PartitionSpec())


def on_mesh(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Replicates arrays over the mesh. Arrays that are already on the mesh are unchanged."""
    return jax.tree.map(
        lambda x: x if x.sharding == (to := sharding_on(mesh, x)) else jax.device_put(x, to), tree
    )
