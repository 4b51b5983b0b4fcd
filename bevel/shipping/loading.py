"""`load`: the parameters of an exported model, after checking that they are the stated ones."""

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

from bevel.errors import RestoreCheckpointError
from bevel.shipping.file_digests import ORBAX, SAFETENSORS, difference, digests_of
from bevel.shipping.model_files import read_model
from bevel.shipping.names import name_in
from bevel.shipping.statement import STATEMENT, Statement, read_statement
from bevel.training.named_arrays import arranged

PyTree = Any


class ShippedModel(NamedTuple):
    """The parameters of an exported model, and its privacy statement."""

    params: PyTree
    statement: Statement


def load(path: str | os.PathLike[str], *, like: PyTree = None) -> ShippedModel:
    """Loads an exported model: `params, statement = load("export", like=params_of_my_model)`.

    Args:
      path: the folder of an export, or its model.safetensors, model/ or privacy.json.
      like: parameters of the model that was trained, with any values. The result has this
        structure, and the frozen parameters of `like`, which are in no export. Without it, the
        result is a dict of NumPy arrays by name, such as "dense/0/w".

    Raises:
      RestoreCheckpointError: the files are not those that the statement was written for.

    It does not verify the statement: see `verify`.
    """
    folder = Path(path)
    if folder.name in (SAFETENSORS, STATEMENT, ORBAX) and (folder.parent / STATEMENT).is_file():
        folder = folder.parent
    statement = read_statement(folder / STATEMENT)
    changed = difference(statement.model.files, digests_of(folder))
    if changed:
        raise RestoreCheckpointError(
            f"{folder} does not contain the model of its statement: {changed}. Export it again, or "
            "get the original files."
        )
    params = read_model(folder, statement.model.format)
    if like is None:
        return ShippedModel(params, statement)
    return ShippedModel(arranged(params, like, functools.partial(name_in, params)), statement)
