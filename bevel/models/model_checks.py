"""Traces a user's model before anything is trained, so that errors name the user's code."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.datasets import DataSpec
from bevel.errors import FixLossError
from bevel.models.model import BuiltModel
from bevel.models.objective import output_shape
from bevel.models.python_function import PythonFunction

PyTree = Any
_ROWS = 3


def check_model(model: BuiltModel, data: DataSpec, function: PythonFunction) -> None:
    """Raises unless the parameters are arrays, and outputs and loss have the right shapes.

    Nothing is computed: the functions are traced with the types of the data.
    """
    where = f"[model] module {function.location}"
    params = _initial_types(model, function, where)
    x = jax.ShapeDtypeStruct((_ROWS, *data.shape), np.dtype(data.dtype))
    given = f"x of shape {_batched(x.shape)} and dtype {data.dtype}"
    outputs = function.run(
        f"the model, given {given},", lambda: jax.eval_shape(model.predict, params, x)
    )
    _check_outputs(outputs, data, f"{where}: given {given}, the model")
    one = example_types(data, 1)
    state = () if model.model_state is None else (model.model_state,)
    key = jax.eval_shape(lambda: jax.random.key(0))
    loss, _ = function.run(
        "the loss of one example", lambda: jax.eval_shape(model.loss_fn, params, *state, one, key)
    )
    if getattr(loss, "shape", None) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise FixLossError(
            f"{where}: the loss of one example is {_described(loss)}, but it has to be one number: "
            "take its mean(). The batch that it gets has one example."
        )


def example_types(data: DataSpec, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The types of a batch of this many records."""
    return jax.tree.map(
        lambda one: jax.ShapeDtypeStruct((rows, *one.shape), one.dtype), data.record
    )


def _initial_types(model: BuiltModel, function: PythonFunction, where: str) -> PyTree:
    def checked() -> PyTree:
        params = model.init()
        leaves = jax.tree_util.tree_leaves_with_path(params)
        for path, leaf in leaves:
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
                raise FixLossError(
                    f"{where}: the parameters contain a {type(leaf).__name__} at "
                    f"params{jax.tree_util.keystr(path)}, but they have to be arrays. Keep other "
                    "values in variables of the function."
                )
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise FixLossError(
                    f"{where}: the parameter at params{jax.tree_util.keystr(path)} has dtype "
                    f"{leaf.dtype}, which has no gradient. Use float32, or keep it outside of the "
                    "parameters."
                )
        if not leaves:
            raise FixLossError(f"{where}: the model has no parameters, so nothing can be trained.")
        return params

    return function.run("init", lambda: jax.eval_shape(checked))


def _check_outputs(outputs: Any, data: DataSpec, found: str) -> None:
    expected = output_shape(data, _ROWS)
    shape = getattr(outputs, "shape", None)
    if shape == expected or (data.target == "number" and shape == (*expected, 1)):
        if jnp.issubdtype(outputs.dtype, jnp.floating):
            return
        raise FixLossError(f"{found} returns {outputs.dtype} values: return floating-point ones.")
    meaning = {
        "class": f"one logit for each of {data.classes} classes",
        "number": "one number per example",
        "next token": f"one logit for each of {data.vocabulary} tokens at every position",
    }[data.target]
    raise FixLossError(
        f"{found} returns {_described(outputs)}, but it has to return shape {_batched(expected)}: "
        f"{meaning}. B is the number of examples."
    )


def _described(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {_batched(value.shape)}"
    return f"a {type(value).__name__}"


def _batched(shape: tuple[int, ...]) -> str:
    """The shape, with B for the number of examples."""
    sizes = ["B" if i == 0 and n == _ROWS else str(n) for i, n in enumerate(shape)]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
