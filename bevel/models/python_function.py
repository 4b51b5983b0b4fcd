"""Calls the function of the user's that builds a model, with errors that say where."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from bevel.checks import in_one_line
from bevel.datasets.python_file import load_function, place_of
from bevel.errors import BevelError, FixArgumentsError, FixLossError


@dataclasses.dataclass(frozen=True)
class PythonFunction:
    """A function of the user's, and where it was found."""

    location: str
    file: str
    function: Callable[..., Any]

    def __call__(self, data: Any, **offered: Callable[[], Any]) -> Any:
        """Calls it with `data`, and with those offered arguments that it has a parameter for."""
        wanted = _offered_parameters(self.function, self.location, tuple(offered))
        arguments = {name: offered[name]() for name in wanted}
        return self.run("the function", lambda: self.function(data, **arguments))

    def run(self, what: str, call: Callable[[], Any]) -> Any:
        """Calls code of the user's. An exception becomes an error that names the line."""
        try:
            return call()
        except BevelError as error:
            where = f"[model] module {self.location}"
            known = str(error).startswith("[model]")
            raise (error if known else type(error)(f"{where}: {error}")) from None
        except Exception as error:
            said = in_one_line(str(error).split("\n\n")[0], 240)
            raise FixLossError(
                f"[model] module {self.location}: {what} raised {type(error).__name__}"
                f"{place_of(error, self.file)}: {said}"
            ) from error


def model_function(location: str) -> PythonFunction:
    """Loads the function named by [model] module."""
    function, file = load_function(location, "[model] module")
    return PythonFunction(location, file, function)


def _offered_parameters(
    function: Callable[..., Any], location: str, names: tuple[str, ...]
) -> list[str]:
    """The names that a function has a parameter for. Raises unless it takes `data` besides."""
    try:
        signature = inspect.signature(function)
        if isinstance(function, type):  # whose metaclass may hide the parameters
            of_instance = inspect.signature(getattr(function, "__init__"))  # noqa: B009
            signature = of_instance.replace(parameters=list(of_instance.parameters.values())[1:])
    except (TypeError, ValueError):  # some callables have none
        return []
    wanted = [name for name in list(signature.parameters)[1:] if name in names]
    try:
        signature.bind(None, **dict.fromkeys(wanted))
    except TypeError:
        name = location.rpartition(":")[2]
        optional = " or ".join(f"{name}(data, {extra})" for extra in names)
        raise FixArgumentsError(
            f"[model] module {location}: it takes {signature}, but it is called as {name}(data), "
            f"{optional}. data.shape, data.classes and data.kind describe the data "
            "(docs/models.md)."
        ) from None
    return wanted
