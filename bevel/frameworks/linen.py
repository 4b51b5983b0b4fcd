"""Train Flax Linen models privately: `state = fit(state, loss, data, ...)`, or your own loop."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bevel.clipping import BoundedSensitivityCallable
from bevel.errors import FixArgumentsError, FixLossError
from bevel.execution_plan import DPExecutionPlan
from bevel.frameworks.adapter import Adapter, FunctionalModel, ModelLoss, Parts, fit_functional
from bevel.frameworks.loss_checks import call_loss
from bevel.training import LoRA

try:
    from flax import errors as flax_errors
    from flax.training.train_state import TrainState
except ImportError as error:
    raise ImportError(
        "bevel.frameworks.linen needs Flax: pip install 'bevel[frameworks]'."
    ) from error

__all__ = ["clipped_grad", "fit", "functional"]

PyTree = Any
_READ_ONLY = (
    "would be released without noise, so collections are read-only while training. In place of "
    "BatchNorm, use GroupNorm or LayerNorm, or its running averages (use_running_average=True)."
)


def fit(
    train_state: TrainState,
    loss: ModelLoss,
    dataset: Any,
    *,
    config: Any,
    trainable: Any = None,
    collections: Mapping[str, PyTree] | None = None,
    rngs: Sequence[str] = ("dropout",),
    lora: LoRA | None = None,
    evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
    **options: Any,
) -> TrainState:
    """Trains the model of a `TrainState` with `bevel.Trainer`, and returns the trained state.

    Args:
      train_state: a new `TrainState.create(apply_fn=model.apply, params=..., tx=...)`. Its
        optimizer `tx` sees noised gradients only.
      loss: `loss(model, batch)` or `loss(model, batch, key)`, which returns the loss or
        `(loss, aux)`. It is called with one example at a time, which has a batch dimension of
        size 1. `model` stands for `apply_fn` with its variables: `model(x, train=True)` is
        `apply_fn({"params": params, **collections}, x, train=True, rngs={"dropout": key})`, where
        each example has its own key.
      dataset: arrays with one row per example, or any source that `Trainer.fit` takes.
      config, trainable: as in `Trainer`.
      collections: further variables of the model, read-only, such as
        {"batch_stats": ...}. By default the `batch_stats` of the `TrainState`, if it has them.
      rngs: the names of the model's random streams.
      lora: trains low-rank factors of some parameters instead (`bevel.training.LoRA`). The returned
        state has the merged matrices, and an optimizer state of the factors.
      evaluate: `model -> metrics`, on public or held-out data, at every checkpoint; `model` is a
        function as in the loss, without random streams.
      options: the other options of `Trainer` (`mesh`, `ema_decay`, ...) and of `Trainer.fit`
        (`folder`, `callback`, `options`, ...).

    Returns:
      The `TrainState` with trained parameters (their average, with `ema_decay`), the optimizer
      state of the trained parameters, and the number of steps.

    Raises:
      FixLossError: the model changes a collection, such as the statistics of BatchNorm, which
        would be released without noise.
    """
    _check_train_state(train_state)
    if "optimizer" in options:
        raise FixArgumentsError(
            "leave out optimizer: the TrainState has one, "
            "TrainState.create(apply_fn=..., params=..., tx=optimizer)."
        )
    if int(train_state.step) != 0:
        raise FixArgumentsError(
            f"train_state has taken {int(train_state.step)} steps, but a private run starts with a "
            "new optimizer state: pass TrainState.create(apply_fn=..., params=..., tx=...)."
        )
    if lora is not None and trainable is not None:
        raise FixArgumentsError(
            "pass either trainable or lora. LoRA(match=..., full=...) says what is trained."
        )
    parts = functional(train_state, loss, collections=collections, rngs=rngs, lora=lora)
    options |= {"config": config, "optimizer": train_state.tx, "trainable": trainable}
    state, params = fit_functional(parts, dataset, evaluate, options)
    trained = parts.merge(params).variables["params"]
    return train_state.replace(step=int(state.step), params=trained, opt_state=state.opt_state)


def clipped_grad(
    loss: ModelLoss,
    has_aux: bool = False,
    *,
    l2_clip_norm: Any = None,
    plan: DPExecutionPlan | None = None,
    allow_coupled_examples: bool = False,
    collections: Mapping[str, PyTree] | None = None,
    rngs: Sequence[str] = ("dropout",),
    **options: Any,
) -> BoundedSensitivityCallable:
    """Like `jax.grad` of the loss of a `TrainState`, clipped per example and summed.

    `grads = clipped_grad(loss, l2_clip_norm=1.0)(train_state, batch, key)` has the tree of
    `train_state.params`. Add noise to it (that of the plan, or `bevel.gaussian_privatizer`) before
    you pass it to `train_state.apply_gradients(grads=noised)`.

    Args:
      loss, collections, rngs: as in `fit`.
      has_aux: the loss returns `(loss, aux)`; then the result is `(grads, Aux)`.
      l2_clip_norm, options: as in `bevel.clipped_grad`.
      plan: the plan whose noise you add, in place of `l2_clip_norm`.
      allow_coupled_examples: do not refuse a loss with statistics over the batch.

    Returns:
      A `BoundedSensitivityCallable` of `(train_state, batch, key=None)`, which also takes
      `is_padding_example`. Without a key, the model has no random streams.
    """
    adapter = _Linen(collections, tuple(rngs))
    return adapter.clipped_grad(loss, has_aux, l2_clip_norm, plan, allow_coupled_examples, options)


def functional(
    train_state: TrainState,
    loss: ModelLoss,
    *,
    collections: Mapping[str, PyTree] | None = None,
    rngs: Sequence[str] = ("dropout",),
    lora: LoRA | None = None,
) -> FunctionalModel:
    """Splits a `TrainState` for `bevel.Trainer`: use it where you want the trainer itself."""
    return _Linen(collections, tuple(rngs)).functional(train_state, loss, lora)


@dataclasses.dataclass(frozen=True, eq=False)
class _Model:
    """`apply_fn` with its variables, as a function of the other arguments."""

    apply_fn: Callable[..., Any]
    variables: Mapping[str, PyTree]
    rngs: Mapping[str, jax.Array]

    def __call__(self, *args: Any, rngs: Any = None, mutable: Any = False, **kwargs: Any) -> Any:
        names = [mutable] if isinstance(mutable, str) else mutable
        if mutable is True or (names and set(names) & self.variables.keys()):
            raise FixLossError(f"the loss passes mutable={mutable!r}. What changes {_READ_ONLY}")
        given: dict[str, Any] = {"rngs": {**self.rngs, **(rngs or {})}, "mutable": mutable}
        given = {name: x for name, x in given.items() if x}  # functions other than Flax's lack them
        try:
            return self.apply_fn(self.variables, *args, **given, **kwargs)
        except flax_errors.ModifyScopeVariableError as error:
            raise FixLossError(f"{str(error).split('. ')[0]}. This {_READ_ONLY}") from error


@dataclasses.dataclass(frozen=True)
class _ApplyFn:
    function: Callable[..., Any]

    # By identity: modules with dicts have no hash, and never change.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ApplyFn) and other.function is self.function

    def __hash__(self) -> int:
        return id(self.function)


@dataclasses.dataclass(frozen=True)
class _Linen(Adapter):
    """A model is the `apply_fn` of a `TrainState` with its variables."""

    collections: Mapping[str, PyTree] | None
    rngs: tuple[str, ...]

    def split(self, model: Any) -> Parts:
        _check_train_state(model)
        if "params" in model.params:
            raise FixArgumentsError(
                "the params of the TrainState are all variables of the model. Pass "
                "params=variables['params'], and other collections as collections={...}."
            )
        collections = self.collections
        if collections is None:
            statistics = getattr(model, "batch_stats", None)
            collections = {} if statistics is None else {"batch_stats": statistics}
        return Parts(model.params, dict(collections), _ApplyFn(model.apply_fn))

    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        streams = {}
        if key is not None:
            streams = {name: jax.random.fold_in(key, i) for i, name in enumerate(self.rngs)}
        model = _bound(parts, streams)
        return call_loss(loss, model, batch, key=key), {}

    def merge(self, model: Any, params: PyTree) -> Any:
        parts = self.split(model)
        return _bound(parts._replace(params=params), {})

    def advice(self, error: Exception, has_key: bool) -> str | None:
        if isinstance(error, flax_errors.InvalidRngError):
            if not has_key:
                return "Pass a key: grad_fn(train_state, batch, key), with a new key at each step."
            return f"Name all random streams of the model: rngs={self.rngs!r} lacks this one."
        if isinstance(error, flax_errors.ScopeCollectionNotFound):
            return "Pass the variables that are not parameters as collections={...}."
        is_of_model = isinstance(error, AttributeError) and isinstance(error.obj, _Model)
        if is_of_model or isinstance(error, flax_errors.ApplyScopeInvalidVariablesTypeError):
            return (
                "The first argument of the loss is neither a TrainState nor a tree of parameters: "
                "it stands for apply_fn with its variables. Call it as model(x)."
            )
        return None


def _check_train_state(train_state: Any) -> None:
    if not isinstance(train_state, TrainState):
        raise FixArgumentsError(
            f"train_state is a {type(train_state).__name__}: pass "
            "TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)."
        )


def _bound(parts: Parts, streams: Mapping[str, jax.Array]) -> _Model:
    variables = {"params": parts.params, **parts.model_state}
    return _Model(parts.structure.function, variables, streams)
