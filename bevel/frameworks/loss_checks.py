"""Call a loss of a model, and check what it does with the model."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.interpreters import partial_eval

from bevel.errors import FixArgumentsError, FixLossError

PyTree = Any


def call_loss(loss: Callable[..., Any], model: Any, batch: PyTree, **offered: Any) -> Any:
    """Calls `loss(model, batch)`, with those keyword arguments that it has a parameter for."""
    wanted = _named_parameters(loss, tuple(offered))
    if "key" in wanted and offered["key"] is None:
        raise FixArgumentsError(
            "the loss takes a key, but none was given: call grad_fn(model, batch, key), with a new "
            "key at each step."
        )
    return loss(model, batch, **{name: offered[name] for name in wanted})


def _named_parameters(loss: Callable[..., Any], names: tuple[str, ...]) -> list[str]:
    """The names that a loss has a parameter for. Raises unless it can be called with these."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # some callables have none
        return []
    wanted = [name for name in names if name in signature.parameters]
    try:
        signature.bind(None, None, **dict.fromkeys(wanted))
    except TypeError:
        extra = "".join(f", {name}" for name in names)
        raise FixLossError(
            f"the loss has the parameters {signature}, but it is called as loss(model, batch) or "
            f"loss(model, batch{extra}). Pass several arrays as one batch: loss(model, (x, y))."
        ) from None
    return wanted


def split_result(result: Any) -> tuple[Any, Any]:
    """The loss and its aux. A loss without aux may return just the loss."""
    if isinstance(result, tuple):
        if len(result) != 2:
            raise FixLossError(
                f"the loss returned {len(result)} values: return the loss, or a pair (loss, aux)."
            )
        return result
    return result, {}


def check_effects(
    effects: Callable[..., tuple[Any, Mapping[str, Any]]],
    params: PyTree,
    model_state: PyTree,
    batch: PyTree,
    key: Any,
    frozen_layers: str,
) -> None:
    """Raises if a loss ignores the parameters, or changes the model depending on the data.

    `effects(params, model_state, batch, key)` returns the loss and, by path, the arrays of the
    model that the loss replaced. It is traced. Changes that do not depend on the batch, such as
    counters and what transformations return as they got it, are allowed: they are dropped.
    `frozen_layers` says how the framework uses a BatchNorm without changing it.
    """
    arguments = params, model_state, batch, key
    program, outputs = jax.make_jaxpr(effects, return_shape=True)(*arguments)
    first_output, changed = outputs
    sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
    data = slice(sum(sizes[:2]), sum(sizes[:3]))
    count = len(jax.tree.leaves(first_output))
    paths = sorted(changed)  # as JAX flattens a dict
    for i, path in enumerate(paths):
        if any(_inputs_of_output(program, count + i)[data]):
            raise FixLossError(
                f"the loss changes {path}, which is not trained, depending on the batch. This "
                "would be released without noise, so state is read-only while training. In place "
                f"of BatchNorm, use GroupNorm or LayerNorm, or {frozen_layers}."
            )
    used = [any(_inputs_of_output(program, i)[: sizes[0]]) for i in range(count)]
    if not any(used):
        raise FixLossError(
            "the loss does not depend on the trained parameters, so its gradient is zero. Use the "
            "model that is passed to the loss, not one from outside of it."
        )


def _inputs_of_output(program: Any, output: int) -> list[bool]:
    """Which inputs of a program one of its outputs depends on."""
    wanted = [i == output for i in range(len(program.jaxpr.outvars))]
    return partial_eval.dce_jaxpr(program.jaxpr, wanted)[1]
