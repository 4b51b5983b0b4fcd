"""What the adapters share: a model as parameters, state and structure, and a loss of these."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel.checks import in_one_line
from bevel.clipping import BoundedSensitivityCallable, clipped_grad
from bevel.clipping.coupled_examples import EXPLANATION, quiet
from bevel.errors import BevelError, FixArgumentsError, FixLossError
from bevel.execution_plan import DPExecutionPlan
from bevel.frameworks.loss_checks import check_effects, split_result
from bevel.training import LoRA, LossFnWithState, Trainer, TrainingState

PyTree = Any
ModelLoss = Callable[..., Any]  # (model, batch) or (model, batch, key) -> loss or (loss, aux)


class Parts(NamedTuple):
    """A model, taken apart."""

    params: PyTree  # the trained arrays
    model_state: PyTree  # the other arrays: read-only
    structure: Any  # everything else; hashable, so that programs can be cached


@dataclasses.dataclass(frozen=True)
class FunctionalModel:
    """A model and its loss in the form that `bevel.Trainer` and `bevel.clipped_grad` take.

    Attributes:
      params: the trained parameters.
      model_state: the arrays that are not trained.
      loss_fn: `(params, model_state, data, prng) -> (loss, aux)`.
      merge: `params -> model`, a new model with these parameters.
    """

    params: PyTree
    model_state: PyTree
    loss_fn: LossFnWithState
    merge: Callable[[PyTree], Any]

    def with_lora(self, lora: LoRA | None) -> "FunctionalModel":
        """Freezes the parameters and trains low-rank factors instead. None changes nothing."""
        if lora is None:
            return self
        factors, base = lora.split(self.params)

        def loss_fn(
            params: PyTree, model_state: PyTree, data: PyTree, prng: jax.Array
        ) -> tuple[jax.Array, Any]:
            base, of_model = model_state
            return self.loss_fn(base.merged(params), of_model, data, prng)

        return FunctionalModel(
            factors,
            (base, self.model_state),
            loss_fn,
            lambda params: self.merge(base.merged(params)),
        )


class Adapter(abc.ABC):
    """Takes the models of one framework apart, and calls losses of them."""

    # How a pretrained BatchNorm is used without changing it.
    frozen_layers = "its running averages (use_running_average=True, or inference mode)"

    @abc.abstractmethod
    def split(self, model: Any) -> Parts:
        """Takes a model apart."""

    @abc.abstractmethod
    def run(
        self, loss: ModelLoss, parts: Parts, batch: PyTree, key: jax.Array | None
    ) -> tuple[Any, Mapping[str, Any]]:
        """Calls a loss with a model made of `parts`, whose randomness comes from `key`.

        Returns the result, and the arrays of the model that the loss replaced, by path.
        """

    @abc.abstractmethod
    def merge(self, model: Any, params: PyTree) -> Any:
        """A new model with other parameters."""

    def own_key(self, model: Any) -> jax.Array | None:
        """The next key of the model's own random generator, if it has one."""
        return None

    def advice(self, error: Exception, has_key: bool) -> str | None:
        """What to change in the loss or the call after an error of the framework, if known."""
        return None

    def functional(self, model: Any, loss: ModelLoss, lora: LoRA | None = None) -> FunctionalModel:
        parts = self.split(model)

        def loss_fn(
            params: PyTree, model_state: PyTree, data: PyTree, prng: jax.Array
        ) -> tuple[jax.Array, Any]:
            return self._loss(loss, Parts(params, model_state, parts.structure), data, prng)

        whole = FunctionalModel(
            parts.params, parts.model_state, loss_fn, lambda params: self.merge(model, params)
        )
        return whole.with_lora(lora)

    def clipped_grad(
        self,
        loss: ModelLoss,
        has_aux: bool,
        l2_clip_norm: Any,
        plan: DPExecutionPlan | None,
        allow_coupled_examples: bool,
        options: Mapping[str, Any],
    ) -> BoundedSensitivityCallable:
        """`grad_fn(model, batch, key=None, is_padding_example=None)`, for one's own loop."""
        if (l2_clip_norm is None) == (plan is None):
            raise FixArgumentsError(
                "pass either l2_clip_norm, or the plan whose noise you add: plan=config.make()."
            )

        def loss_of_parts(
            params: PyTree, model_state: PyTree, batch: PyTree, key: Any, fixed: tuple[Any, bool]
        ) -> Any:
            structure, has_key = fixed
            parts = Parts(params, model_state, structure)
            value, aux = self._loss(loss, parts, batch, key if has_key else None)
            if has_aux:
                return value, aux
            if jax.tree.leaves(aux):
                raise FixLossError("the loss returned a pair (loss, aux): pass has_aux=True.")
            return value

        quiet(loss_of_parts)  # a loss that couples examples is refused below
        options = {**options, "batch_argnums": 2, "prng_argnum": 3}
        if plan is None:
            of_parts = clipped_grad(loss_of_parts, 0, has_aux, l2_clip_norm=l2_clip_norm, **options)
        else:
            of_parts = plan.clipped_grad(loss_of_parts, 0, has_aux, **options)

        def of_model(
            model: Any, batch: PyTree, *key: Any, is_padding_example: Any = None, **named: Any
        ) -> Any:
            given = _given_key(key, named)
            if given is None:
                given = self.own_key(model)
            has_key = given is not None
            parts = self.split(model)
            result = of_parts(
                parts.params,
                parts.model_state,
                batch,
                given if has_key else jax.random.key(0),  # nothing is drawn from it
                (parts.structure, has_key),
                is_padding_example=is_padding_example,
            )
            coupling = of_parts.program.coupling
            if coupling is not None and not allow_coupled_examples:
                raise FixLossError(
                    f"the loss couples examples: {coupling}. {EXPLANATION} To go on nevertheless, "
                    "pass clipped_grad(..., allow_coupled_examples=True)."
                )
            return result

        return dataclasses.replace(of_parts, bounded_sensitivity_fun=of_model, task=None)

    def _loss(self, loss: ModelLoss, parts: Parts, batch: PyTree, key: Any) -> tuple[Any, Any]:
        """The checked loss of one example, and aux."""

        def effects(params: PyTree, model_state: PyTree, batch: PyTree, key: Any) -> Any:
            own = Parts(params, model_state, parts.structure)
            result, changed = self.run(loss, own, batch, key)
            return split_result(result)[0], dict(changed)

        try:
            check_effects(effects, parts.params, parts.model_state, batch, key, self.frozen_layers)
        except BevelError:
            raise
        except Exception as error:
            advice = self.advice(error, key is not None)
            if advice is None:
                raise
            said = in_one_line(str(error).split("\n\n")[0].split(" (https:")[0], 300)
            raise FixLossError(
                f"the loss raised {type(error).__name__}: {said} {advice}"
            ) from error
        return split_result(self.run(loss, parts, batch, key)[0])


def _given_key(extra: tuple[Any, ...], named: dict[str, Any]) -> jax.Array | None:
    """The key among the arguments that follow the batch."""
    values = [*extra, *named.values()]
    if not values:
        return None
    is_one = len(values) == 1 and not named.keys() - {"key"}
    if is_one and values[0] is None:
        return None
    if not is_one or not _is_key(values[0]):
        raise FixArgumentsError(
            "grad_fn takes a model, one batch and a random key. Pass several arrays as one batch: "
            "grad_fn(model, (x, y), key)."
        )
    return values[0]


def _is_key(x: Any) -> bool:
    if not hasattr(x, "dtype"):
        return False
    typed = jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.shape == ()
    return typed or (x.dtype == jnp.uint32 and x.shape == (2,))


def fit_functional(
    model: FunctionalModel,
    dataset: Any,
    evaluate: Callable[[Any], Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> tuple[TrainingState, PyTree]:
    """Trains with `bevel.Trainer`, whose options and those of its `fit` are in `options`.

    Returns the last state, and the parameters to use: the average if there is one.
    """
    fields = {field.name for field in dataclasses.fields(Trainer)}
    trainer = Trainer(
        loss_fn=model.loss_fn, **{name: x for name, x in options.items() if name in fields}
    )
    of_run = {name: x for name, x in options.items() if name not in fields}
    if evaluate is not None:
        if not callable(evaluate):
            raise FixArgumentsError(f"evaluate={evaluate!r}: pass a function of a model.")
        of_run["evaluate"] = lambda params: evaluate(model.merge(params))
    state = trainer.fit(dataset, model.params, model_state=model.model_state, **of_run)
    return state, trainer.released(state).evaluated
