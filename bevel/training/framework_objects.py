"""Recognises objects of Flax, Equinox and Keras where arrays are expected.

The frameworks are not imported: a class is recognised by its name and the package that defines it.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from bevel.errors import FixArgumentsError, FixLossError
from bevel.training.state import path_text

PyTree = Any
# (package, class): what it is, and what to pass instead.
_KINDS = {
    ("equinox", "Module"): (
        "an Equinox module with leaves that are not arrays",
        "Use bevel.frameworks.equinox, or split it with "
        "eqx.partition(model, eqx.is_inexact_array) and combine both parts in the loss.",
    ),
    ("flax", "TrainState"): (
        "a Flax TrainState",
        "Use bevel.frameworks.linen, or pass state.params, and state.tx as the optimizer.",
    ),
    ("flax.nnx", "Module"): (
        "a Flax NNX module with variables that are not parameters",
        "Use bevel.frameworks.nnx, or split it with nnx.split(model, nnx.Param, ...), pass the "
        "parameters, and the rest as model_state, and merge them in the loss.",
    ),
    ("flax.linen", "Module"): (
        "a Flax Linen module",
        "Pass its parameters, model.init(key, x)['params'], or use bevel.frameworks.linen.",
    ),
    ("keras", "Layer"): ("a Keras model", "Use bevel.keras_api."),
}
_NNX_STATE = (("flax.nnx", "Module"), ("flax.nnx", "Variable"), ("flax.nnx", "State"))


def check_params(params: PyTree) -> None:
    """Raises unless all leaves are arrays, with advice for objects of frameworks."""
    for value in jax.tree.leaves(params, is_leaf=lambda x: _kind(x) is not None):
        kind = _kind(value)
        if kind is not None and _is_refused(kind, value):
            what, advice = _KINDS[kind]
            raise FixArgumentsError(
                f"params contains {what} ({type(value).__name__}), but a trainer needs a tree of "
                f"arrays. {advice}"
            )
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise FixArgumentsError("params has no arrays: pass the initial parameters of the model.")
    for path, leaf in leaves:
        if not _is_array(leaf):
            raise FixArgumentsError(
                f"params contains a {type(leaf).__name__} at {path_text(path)!r}, but a trainer "
                "needs a tree of arrays. Close over what is not an array in the loss."
            )


def check_trained(trained: PyTree) -> None:
    """Raises if a parameter that is to be trained has no gradient, or is a batch statistic."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
        name = path_text(path)
        if name.startswith("batch_stats/"):
            raise FixArgumentsError(
                f"{name!r} is a batch statistic and not a parameter: training would add noise to "
                "it. Pass variables['params'] as the parameters, and the other collections as "
                "fit(..., model_state=...)."
            )
        if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            raise FixArgumentsError(
                f"{name!r} has dtype {leaf.dtype}, which has no real gradient. Leave it out with "
                "Trainer(trainable=...), or pass it as fit(..., model_state=...)."
            )


def explain_closed_over_state(loss_fn: Callable[..., Any], error: Exception) -> None:
    """Raises an error with advice if `error` says that a loss changed state that it closes over."""
    if type(error).__name__ == "TraceContextError":
        raise FixLossError(
            f"loss_fn changes Flax NNX state that it closes over{_named(loss_fn)}, such as batch "
            "statistics or the counter of a dropout generator, but it must be a function of its "
            "arguments. Use bevel.frameworks.nnx, which carries such state as model_state and "
            "reseeds dropout for every example."
        ) from error


def check_depends_on_params(loss_fn: Callable[..., Any], uses_params: bool) -> None:
    """Raises if the loss reads no parameter, so that training would only add noise."""
    if not uses_params:
        closed = _named(loss_fn)
        advice = (
            f"It closes over Flax NNX state{closed} instead: use bevel.frameworks.nnx, or merge "
            "the model from `params` inside the loss."
            if closed
            else "Compute it from its first argument, not from a model that it closes over."
        )
        raise FixLossError(
            f"the loss does not depend on any trained parameter, so training would only add noise "
            f"to them. {advice}"
        )


def _kind(value: Any) -> tuple[str, str] | None:
    """The entry of `_KINDS` that a value is an instance of."""
    return next((kind for kind in _KINDS if _inherits(value, kind)), None)


def _inherits(value: Any, kind: tuple[str, str]) -> bool:
    package, name = kind
    return any(
        c.__name__ == name and f"{c.__module__}.".startswith(f"{package}.")
        for c in type(value).__mro__
    )


def _is_refused(kind: tuple[str, str], value: Any) -> bool:
    if kind == ("equinox", "Module"):
        return not all(map(_is_array, jax.tree.leaves(value)))
    if kind == ("flax.nnx", "Module"):
        variable, param = ("flax.nnx", "Variable"), ("flax.nnx", "Param")
        leaves = jax.tree.leaves(value, is_leaf=lambda x: _inherits(x, variable))
        return any(_inherits(x, variable) and not _inherits(x, param) for x in leaves)
    return True


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "ndim")
    )


def _named(loss_fn: Callable[..., Any]) -> str:
    """The names under which a loss closes over NNX state, as ' (model)'."""
    values = dict(_closed_over(loss_fn))
    names = [n for n, x in values.items() if any(_inherits(x, kind) for kind in _NNX_STATE)]
    return f" ({', '.join(names)})" if names else ""


def _closed_over(loss_fn: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that a function reads from outside of it."""
    if isinstance(loss_fn, functools.partial):
        yield from loss_fn.keywords.items()
        yield from ((f"argument {n}", value) for n, value in enumerate(loss_fn.args))
        loss_fn = loss_fn.func
    function = inspect.unwrap(getattr(loss_fn, "__func__", loss_fn))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    outside: Mapping[str, Any] = function.__globals__
    yield from ((name, outside[name]) for name in code.co_names if name in outside)
