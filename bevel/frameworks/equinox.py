"""Train Equinox modules privately: `model = fit(model, loss, data, ...)`, or your own loop."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bevel.clipping import BoundedSensitivityCallable
from bevel.errors import FixArgumentsError, FixLossError
from bevel.execution_plan import DPExecutionPlan
from bevel.frameworks.adapter import Adapter, FunctionalModel, ModelLoss, Parts, fit_functional
from bevel.frameworks.loss_checks import call_loss, split_result
from bevel.training import LoRA

try:
    import equinox as eqx
except ImportError as error:
    raise ImportError(
        "bevel.frameworks.equinox needs Equinox: pip install 'bevel[frameworks]'."
    ) from error

__all__ = ["clipped_grad", "fit", "functional"]

PyTree = Any


def fit(
    model: PyTree,
    loss: ModelLoss,
    dataset: Any,
    *,
    config: Any,
    optimizer: Any,
    trainable: Any = eqx.is_inexact_array,
    state: eqx.nn.State | None = None,
    lora: LoRA | None = None,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    **options: Any,
) -> PyTree:
    """Trains an Equinox module with `bevel.Trainer`, and returns the trained module.

    Args:
      model: a whole module, with static fields, functions, None and any other leaves.
      loss: `loss(model, batch)`, which returns the loss or `(loss, aux)`. It is called with one
        example at a time, which has a batch dimension of size 1, so `jax.vmap(model)(x)` works as
        usual. If it has a parameter `key`, it gets a key of the example, for Dropout; if it has a
        parameter `state`, it gets the state.
      dataset: arrays with one row per example, or any source that `Trainer.fit` takes.
      config, optimizer: as in `Trainer`; the optimizer is one of optax.
      trainable: which leaves are trained, as in `eqx.partition`: a function of a leaf, or a tree
        of booleans and functions that is a prefix of the model. Only floating-point arrays are
        trained. All other leaves are returned as they are.
      state: of stateful layers (`eqx.nn.State`), read-only.
      lora: trains low-rank factors of some of these arrays instead (`bevel.training.LoRA`). The
        returned module has the merged matrices.
      evaluate: `model -> metrics`, on public or held-out data, at every checkpoint.
      options: the other options of `Trainer` (`mesh`, `ema_decay`, ...) and of `Trainer.fit`
        (`folder`, `callback`, `options`, ...).

    Returns:
      The trained module. With `ema_decay`, its parameters are the average.

    Raises:
      FixLossError: a BatchNorm is not in inference mode, or the loss returns a state that depends
        on the data, which would be released without noise.
    """
    parts = functional(model, loss, trainable=trainable, state=state, lora=lora)
    options |= {"config": config, "optimizer": optimizer}
    return parts.merge(fit_functional(parts, dataset, evaluate, options)[1])


def clipped_grad(
    loss: ModelLoss,
    has_aux: bool = False,
    *,
    l2_clip_norm: Any = None,
    plan: DPExecutionPlan | None = None,
    allow_coupled_examples: bool = False,
    trainable: Any = eqx.is_inexact_array,
    state: eqx.nn.State | None = None,
    **options: Any,
) -> BoundedSensitivityCallable:
    """Like `eqx.filter_grad(loss)`, but clipped per example and summed over the batch.

    `grads = clipped_grad(loss, l2_clip_norm=1.0)(model, batch, key)` is a module with None in place
    of what is not trained. Add noise to it (that of the plan, or `bevel.gaussian_privatizer`)
    before you pass it to the optimizer.

    Args:
      loss, trainable, state: as in `fit`.
      has_aux: the loss returns `(loss, aux)`; then the result is `(grads, Aux)`.
      l2_clip_norm, options: as in `bevel.clipped_grad`.
      plan: the plan whose noise you add, in place of `l2_clip_norm`.
      allow_coupled_examples: do not refuse a loss with statistics over the batch.

    Returns:
      A `BoundedSensitivityCallable` of `(model, batch, key=None)`, which also takes
      `is_padding_example`.
    """
    adapter = _Equinox(trainable, state)
    return adapter.clipped_grad(loss, has_aux, l2_clip_norm, plan, allow_coupled_examples, options)


def functional(
    model: PyTree,
    loss: ModelLoss,
    *,
    trainable: Any = eqx.is_inexact_array,
    state: eqx.nn.State | None = None,
    lora: LoRA | None = None,
) -> FunctionalModel:
    """Splits a model for `bevel.Trainer`: use it where you want the trainer itself."""
    return _Equinox(trainable, state).functional(model, loss, lora)


@dataclasses.dataclass(frozen=True)
class _OtherLeaves:
    treedef: Any
    leaves: tuple[Any, ...]  # functions, floats, strings: whatever is not an array


@dataclasses.dataclass(frozen=True)
class _Equinox(Adapter):
    trainable: Any
    state: Any

    def split(self, model: Any) -> Parts:
        _check_model(model)
        _check_filter(self.trainable)
        trained = eqx.filter(eqx.filter(model, self.trainable), eqx.is_inexact_array)
        if not jax.tree.leaves(trained):
            raise FixArgumentsError(
                "trainable selects no floating-point array of the model. Pass a function of a leaf "
                "such as eqx.is_inexact_array, or a tree of booleans like the model."
            )
        is_trained = jax.tree.map(lambda x: x is not None, trained, is_leaf=lambda x: x is None)
        rest = eqx.filter(model, is_trained, inverse=True)
        frozen, others = eqx.partition(rest, eqx.is_array)
        leaves, treedef = jax.tree.flatten(others)
        return Parts(trained, (frozen, self.state), _OtherLeaves(treedef, tuple(leaves)))

    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        frozen, state = parts.model_state
        others = jax.tree.unflatten(parts.structure.treedef, parts.structure.leaves)
        model = eqx.combine(parts.params, frozen, others)
        known = {id(x) for x in jax.tree.leaves(state)}
        value, aux = split_result(call_loss(loss, model, batch, key=key, state=state))
        changed = {}
        for returned in jax.tree.leaves(aux, is_leaf=_is_state):
            if _is_state(returned):
                for path, x in jax.tree_util.tree_leaves_with_path(returned):
                    if id(x) not in known:
                        changed[f"state{jax.tree_util.keystr(path)}"] = x
        # A state is not an output of single examples.
        aux = jax.tree.map(lambda x: None if _is_state(x) else x, aux, is_leaf=_is_state)
        return (value, aux), changed

    def merge(self, model: Any, params: PyTree) -> Any:
        return eqx.combine(params, model)

    def advice(self, error: Exception, has_key: bool) -> str | None:
        if isinstance(error, RuntimeError) and "requires a key" in str(error):
            return (
                "Give the loss a parameter `key`, which is the key of the example, and pass it on: "
                "jax.vmap(model)(x, jax.random.split(key, len(x)))."
            )
        return None


def _check_filter(trainable: Any) -> None:
    for x in jax.tree.leaves(trainable):
        if not (isinstance(x, bool) or callable(x)):
            raise FixArgumentsError(
                f"trainable contains {x!r}: pass a function of a leaf such as "
                "eqx.is_inexact_array, or a tree of booleans like the model."
            )


def _is_state(x: Any) -> bool:
    return isinstance(x, eqx.nn.State)


def _check_model(model: Any) -> None:
    def is_special(x: Any) -> bool:
        return isinstance(x, eqx.nn.State | eqx.nn.BatchNorm)

    if isinstance(model, type):
        raise FixArgumentsError(
            f"model is the class {model.__name__}: pass an instance, such as {model.__name__}(key)."
        )
    for x in jax.tree.leaves(model, is_leaf=is_special):
        if isinstance(x, eqx.nn.State):
            raise FixArgumentsError(
                "the model contains an eqx.nn.State, which is not trained: pass it as state=state."
            )
        if isinstance(x, eqx.nn.BatchNorm) and not x.inference:
            raise FixLossError(
                "the model has a BatchNorm in training mode. It mixes the examples of a batch, and "
                "its running statistics would be released without noise. Use eqx.nn.GroupNorm or "
                "LayerNorm, or the statistics that it has: eqx.nn.inference_mode(model)."
            )
