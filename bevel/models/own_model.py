"""What a user's function returns, as a model: plain functions, or a module of a framework."""

import sys
from collections.abc import Callable
from typing import Any

import jax

from bevel.datasets import DataSpec
from bevel.errors import FixLossError
from bevel.frameworks.loss_checks import call_loss, split_result
from bevel.models.model import BuiltModel, Model
from bevel.models.model_checks import check_model
from bevel.models.objective import loss_of
from bevel.models.python_function import PythonFunction, model_function

PyTree = Any
_ACCEPTED = (
    "Return bevel.models.Model(init, predict), or a module of Flax NNX, Flax Linen, Equinox or "
    "Keras; for your own loss, Model(init, predict, loss), or a pair (module, loss)."
)


def own_model(location: str, data: DataSpec, init_seed: int) -> BuiltModel:
    """Runs the user's function, and checks the model that it returns by tracing it."""
    function = model_function(location)
    key = jax.random.key(init_seed)
    returned = function(data, key=lambda: key, rngs=lambda: _rngs(init_seed))
    built = function.run("its model", lambda: _built(returned, data, key, function))
    check_model(built, data, function)
    return built


def plain_model(model: Model, data: DataSpec, key: jax.Array) -> BuiltModel:
    """A model of plain functions, with the loss that fits the data unless it has its own."""

    def loss_fn(params: PyTree, batch: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]:
        if model.loss is None:
            return loss_of(data, model.predict(params, batch["x"]), batch["y"])
        return split_result(call_loss(model.loss, params, batch, key=prng, prng=prng))

    return BuiltModel(lambda: model.init(key), model.predict, loss_fn)


def _rngs(seed: int) -> Any:
    from flax import nnx

    return nnx.Rngs(seed)


def _built(returned: Any, data: DataSpec, key: jax.Array, function: PythonFunction) -> BuiltModel:
    where = f"[model] module {function.location}"
    if isinstance(returned, Model):
        wrong = [n for n in ("init", "predict") if not callable(getattr(returned, n))]
        if returned.loss is not None and not callable(returned.loss):
            wrong.append("loss")
        if wrong:
            raise FixLossError(f"{where}: {wrong[0]} of its Model is not a function.")
        return plain_model(returned, data, key)
    module, loss = returned, None
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1]):
        module, loss = returned
    make = _framework(module)
    if make is not None:
        return make(module, data, loss, key)
    if isinstance(module, type):
        raise FixLossError(
            f"{where} returned the class {module.__name__}: return an instance of it, such as "
            f"{module.__name__}(...)."
        )
    if module is None:
        raise FixLossError(f"{where} returned None: add a return statement. {_ACCEPTED}")
    raise FixLossError(f"{where} returned {_described(returned)}. {_ACCEPTED}")


def _framework(module: Any) -> Callable[..., BuiltModel] | None:
    """How to build a module of a framework. Only frameworks that the user imported are loaded."""

    def is_a(library: str, name: str) -> bool:
        kind = getattr(sys.modules.get(library), name, None)
        return kind is not None and isinstance(module, kind)

    # One import per branch: a framework that is not installed must not be imported.
    if is_a("flax.nnx", "Module"):
        from bevel.models.nnx_module import from_nnx

        return lambda module, data, loss, key: from_nnx(module, data, loss).built()
    if is_a("flax.linen", "Module"):
        from bevel.models.linen_module import from_linen

        return lambda module, data, loss, key: from_linen(module, data, loss, key).built()
    if is_a("equinox", "Module"):
        from bevel.models.equinox_module import from_equinox

        return lambda module, data, loss, key: from_equinox(module, data, loss).built()
    if is_a("keras", "Model"):
        from bevel.models.keras_model import from_keras

        return lambda module, data, loss, key: from_keras(module, data, loss).built()
    return None


def _described(returned: Any) -> str:
    if isinstance(returned, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in returned) or 'nothing'}"
    return f"a {type(returned).__name__}"
