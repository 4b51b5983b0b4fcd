"""`build`: the model that a config names, for data of a given description."""

from typing import Any

import jax
import jax.numpy as jnp

from bevel.datasets import DataSpec
from bevel.errors import FixArgumentsError
from bevel.models.conv import conv
from bevel.models.dense import linear, mlp
from bevel.models.model import BuiltModel, Model
from bevel.models.options import ModelTable
from bevel.models.own_model import own_model, plain_model
from bevel.models.resnet import resnet
from bevel.models.text import linear_text, text

PyTree = Any
_DEFAULTS = {"image": "conv", "table": "mlp", "tokens": "text"}
# The kinds of data that a kind of model is for, and the sizes that it has.
_DATA = {
    "linear": ("image", "table", "tokens"),
    "mlp": ("image", "table"),
    "conv": ("image",),
    "resnet": ("image",),
    "text": ("tokens",),
}
_SIZES = {"mlp": ("widths",), "conv": ("widths",), "resnet": ("width", "depth")}
_SIZES |= {"text": ("width", "depth"), "linear": ()}


def build(table: ModelTable, data: DataSpec) -> BuiltModel:
    """The model of a config. It depends on the public description of the data only.

    Raises:
      FixArgumentsError: the model does not fit the data, or has no such size.
      FixLossError: the user's own model has an error, or is not private.
    """
    if table.module is not None:
        if table.kind != "auto":
            raise FixArgumentsError(
                f"[model] has both kind = {table.kind!r} and module = {table.module!r}: remove "
                "one of them, on the command line with --model.kind=auto or --model.module=none."
            )
        _check_sizes(table, "a model of your own", ())
        if table.dtype != "float32":
            raise FixArgumentsError(
                f"[model] dtype is {table.dtype}, but the model is your own: remove dtype, and "
                "cast in the model."
            )
        return own_model(table.module, data, table.init_seed)
    kind = _DEFAULTS[data.kind] if table.kind == "auto" else table.kind
    if data.kind not in _DATA[kind]:
        fitting = [name for name, kinds in _DATA.items() if data.kind in kinds]
        raise FixArgumentsError(
            f"[model] kind is {kind}, which is for {' or '.join(_DATA[kind])} data, but the "
            f"examples have shape {data.shape} and kind {data.kind}. Use {' or '.join(fitting)}, "
            "or auto."
        )
    _check_sizes(table, f"kind {kind}", _SIZES[kind])
    model = _computing_in(jnp.dtype(table.dtype), _made(kind, table, data))
    return plain_model(model, data, jax.random.key(table.init_seed))


def _made(kind: str, table: ModelTable, data: DataSpec) -> Model:
    match kind:
        case "conv":
            return conv(data, table.widths)
        case "resnet":
            return resnet(data, table.depth, table.width)
        case "text":
            return text(data, table.depth, table.width)
        case "mlp":
            return mlp(data, table.widths)
        case _:
            return linear_text(data) if data.kind == "tokens" else linear(data)


def _computing_in(dtype: jnp.dtype, model: Model) -> Model:
    """The model in a narrower dtype, with outputs in float32."""
    if dtype == jnp.float32:
        return model

    def narrow(tree: PyTree) -> PyTree:
        return jax.tree.map(
            lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
        )

    def predict(params: PyTree, x: jax.Array) -> jax.Array:
        return model.predict(narrow(params), narrow(x)).astype(jnp.float32)

    return model._replace(predict=predict)


def _check_sizes(table: ModelTable, what: str, allowed: tuple[str, ...]) -> None:
    for name in ("widths", "width", "depth"):
        value = getattr(table, name)
        if value is None:
            continue
        if name not in allowed:
            has = f"it has {' and '.join(allowed)}" if allowed else "it has no sizes to set"
            raise FixArgumentsError(f"[model] {name} is set, but {what} has none: {has}.")
        if value == ():
            raise FixArgumentsError(f"[model] {name} is []: use integers of at least 1.")
