"""Checks the arguments of a loss before anything is traced, so that the advice fits the mistake."""

import inspect
from typing import Any

from bevel.errors import FixLossError

WITHOUT_STATE = ("params", "data", "prng")
WITH_STATE = ("params", "model_state", "data", "prng")
# Names of a third argument that show that data is meant, where the loss gets a random key.
_LABELS = {"y", "ys", "label", "labels", "target", "targets"}


def check_signature(loss_fn: Any, *, has_model_state: bool) -> None:
    """Raises unless `loss_fn` can be called with the arguments that a trainer passes."""
    names = WITH_STATE if has_model_state else WITHOUT_STATE
    expected = f"loss_fn({', '.join(names)}) -> (loss, aux)"
    if not callable(loss_fn):
        raise FixLossError(f"loss_fn is a {type(loss_fn).__name__}: pass a function {expected}.")
    try:
        signature = inspect.signature(loss_fn)
    except (TypeError, ValueError):
        return  # some callables of C extensions have none
    try:
        bound = signature.bind(*names)
    except TypeError as error:
        raise FixLossError(
            f"loss_fn takes {signature}, but a trainer calls {expected}: {error}. "
            f"{_advice(signature, has_model_state)}"
        ) from None
    last = list(bound.arguments)[-1]
    if last in _LABELS:
        raise FixLossError(
            f"loss_fn takes {signature}, but a trainer calls {expected}: {last!r} would be a "
            "random key. Pass the data as one tree, such as {'x': ..., 'y': ...}, and take it "
            "apart inside the loss."
        )


def _advice(signature: inspect.Signature, has_model_state: bool) -> str:
    """What to change, from the number of arguments that the loss takes."""
    positional = [
        p
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    required = [
        p.name
        for p in signature.parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in WITH_STATE
    ]
    by_name = [
        p
        for p in signature.parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name in WITH_STATE
    ]
    # A default among these is a value that functools.partial bound.
    if by_name and all(p.default is p.empty for p in by_name):
        return f"Arguments are passed by position: remove the `*` before {by_name[0].name!r}."
    if required:
        return f"Bind {required[0]!r} with functools.partial(loss_fn, {required[0]}=...)."
    count = len(positional)
    if has_model_state and count == len(WITHOUT_STATE):
        return "Add `model_state` as the second argument, because model_state was given."
    if not has_model_state and count == len(WITHOUT_STATE) - 1:
        return "Add `prng` as the last argument: every example gets a key of its own, for dropout."
    if not has_model_state and count == len(WITH_STATE):
        return (
            "If one of them is what the model reads and nobody trains, pass it as "
            "fit(..., model_state=...). Otherwise put all data into one tree, or bind it with "
            "functools.partial."
        )
    return "Put all data into one tree, and bind other values with functools.partial."
