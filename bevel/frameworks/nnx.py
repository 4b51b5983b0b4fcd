"""Train Flax NNX models privately: `fit(model, loss, data, ...)`, or a loop of your own."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bevel.clipping import BoundedSensitivityCallable
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan
from bevel.frameworks.adapter import Adapter, FunctionalModel, ModelLoss, Parts, fit_functional
from bevel.frameworks.loss_checks import call_loss
from bevel.training import LoRA, TrainingState

try:
    from flax import errors as flax_errors
    from flax import nnx
except ImportError as error:
    raise ImportError(
        "bevel.frameworks.nnx needs Flax: pip install 'bevel[frameworks]'."
    ) from error

__all__ = ["clipped_grad", "fit", "functional"]

PyTree = Any


def fit(
    model: nnx.Module,
    loss: ModelLoss,
    dataset: Any,
    *,
    config: Any,
    optimizer: Any,
    trainable: Any = nnx.Param,
    lora: LoRA | None = None,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    **options: Any,
) -> TrainingState:
    """Trains an NNX model with `bevel.Trainer`, and writes the parameters back into the model.

    Args:
      model: changed in place once all steps are done. With `ema_decay`, it gets the average.
      loss: `loss(model, batch)` or `loss(model, batch, key)`, which returns the loss or
        `(loss, aux)`. It is called with one example at a time, which has a batch dimension of
        size 1, and with a copy of the model. The random streams of that copy (`nnx.Rngs`, as in
        Dropout) start from a key of the example, so every example has its own mask, on any mesh.
      dataset: arrays with one row per example, or any source that `Trainer.fit` takes.
      config, optimizer: as in `Trainer`; the optimizer is one of optax.
      trainable: an NNX filter of the Variables that are trained, such as `nnx.LoRAParam` or
        `nnx.All(nnx.Param, nnx.PathContains("head"))`. All others are read-only.
      lora: trains low-rank factors of some of these Variables instead (`bevel.training.LoRA`). In
        the end the model has the merged matrices.
      evaluate: `model -> metrics`, on public or held-out data, at every checkpoint. It gets a copy
        of the model, in the mode of the model that you passed.
      options: the other options of `Trainer` (`mesh`, `ema_decay`, ...) and of `Trainer.fit`
        (`folder`, `callback`, `options`, ...).

    Returns:
      The last state of the trainer.

    Raises:
      FixLossError: the loss changes Variables that are not trained depending on the data, such as
        the running statistics of BatchNorm, which would be released without noise.
    """
    parts = functional(model, loss, trainable=trainable, lora=lora)
    options |= {"config": config, "optimizer": optimizer}
    state, params = fit_functional(parts, dataset, evaluate, options)
    nnx.update(model, nnx.state(parts.merge(params), trainable))
    return state


def clipped_grad(
    loss: ModelLoss,
    has_aux: bool = False,
    *,
    l2_clip_norm: Any = None,
    plan: DPExecutionPlan | None = None,
    allow_coupled_examples: bool = False,
    trainable: Any = nnx.Param,
    **options: Any,
) -> BoundedSensitivityCallable:
    """Like `nnx.grad(loss)`, but clipped per example and summed over the batch.

    `grads = clipped_grad(loss, l2_clip_norm=1.0)(model, batch)` is an `nnx.State` of the trained
    Variables. Add noise to it (that of the plan, or `bevel.gaussian_privatizer`) before you pass it
    to `optimizer.update(model, noised)`.

    Args:
      loss, trainable: as in `fit`.
      has_aux: the loss returns `(loss, aux)`; then the result is `(grads, Aux)`.
      l2_clip_norm, options: as in `bevel.clipped_grad`.
      plan: the plan whose noise you add, in place of `l2_clip_norm`.
      allow_coupled_examples: do not refuse a loss with statistics over the batch.

    Returns:
      A `BoundedSensitivityCallable` of `(model, batch, key=None)`, which also takes
      `is_padding_example`. Without a key, the model's own random streams provide one, and advance
      as they do in `nnx.grad`.
    """
    adapter = _NNX(trainable)
    return adapter.clipped_grad(loss, has_aux, l2_clip_norm, plan, allow_coupled_examples, options)


def functional(
    model: nnx.Module, loss: ModelLoss, *, trainable: Any = nnx.Param, lora: LoRA | None = None
) -> FunctionalModel:
    """Splits a model for `bevel.Trainer`: use it where you want the trainer itself."""
    return _NNX(trainable).functional(model, loss, lora)


@dataclasses.dataclass(frozen=True)
class _Graph:
    definition: Any
    streams: Any  # the treedef of the random streams
    stream_types: tuple[jax.ShapeDtypeStruct, ...]

    def random_streams(self, key: Any) -> Any:
        """The state of the random streams for one example."""

        def leaf(number: int, like: jax.ShapeDtypeStruct) -> jax.Array:
            if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
                return jnp.zeros(like.shape, like.dtype)  # how many keys were drawn
            own = jax.random.fold_in(key, number)
            return jax.random.split(own, like.shape) if like.shape else own

        leaves = [leaf(number, like) for number, like in enumerate(self.stream_types)]
        return jax.tree.unflatten(self.streams, leaves)


@dataclasses.dataclass(frozen=True)
class _NNX(Adapter):
    trainable: Any

    def split(self, model: Any) -> Parts:
        if not isinstance(model, nnx.Module):
            raise FixArgumentsError(
                f"model is a {type(model).__name__}: pass an nnx.Module that was made with its "
                "rngs, such as Model(rngs=nnx.Rngs(0))."
            )
        split: Any = nnx.split(model, nnx.RngState, self.trainable, ...)
        graph, streams, params, rest = split
        if not jax.tree.leaves(params):
            kinds = sorted({type(v).__name__ for _, v in nnx.to_flat_state(rest)})
            raise FixArgumentsError(
                f"trainable={self.trainable!r} matches none of the model's Variables, which are "
                f"of type {', '.join(kinds) or 'RngState'}."
            )
        leaves, treedef = jax.tree.flatten(streams)
        types = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
        return Parts(params, rest, _Graph(graph, treedef, types))

    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        structure, given = parts.structure, (parts.params, parts.model_state)
        streams = structure.random_streams(key)
        # Copies of the Variables, of which a loss may change the values.
        model = nnx.merge(structure.definition, streams, *jax.tree.map(lambda x: x, given))
        result = call_loss(loss, model, batch, key=key)
        before = _by_path(given[0]) | _by_path(given[1])
        after = _by_path(nnx.state(model))
        both = before.keys() & after.keys()
        return result, {path: after[path] for path in both if after[path] is not before[path]}

    def merge(self, model: Any, params: PyTree) -> Any:
        new = nnx.clone(model)
        nnx.update(new, params)
        return new

    def advice(self, error: Exception, has_key: bool) -> str | None:
        if isinstance(error, flax_errors.TraceContextError):
            return (
                "It changes Variables of a model from outside of the loss, such as the counter of "
                "a dropout generator. Use the model that is passed to the loss."
            )
        return None

    def own_key(self, model: Any) -> jax.Array | None:
        streams = (x for _, x in nnx.iter_graph(model) if isinstance(x, nnx.RngStream))
        stream = next(streams, None)
        if stream is None:
            return None
        first = jax.random.fold_in(jnp.ravel(stream.key[...])[0], jnp.ravel(stream.count[...])[0])
        stream.count[...] += 1
        return first


def _by_path(state: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value"): x
        for path, x in leaves
    }
