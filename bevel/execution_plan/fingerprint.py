"""A hash of what a guarantee and the released numbers depend on."""

import dataclasses
import enum
import hashlib
from typing import Any

import numpy as np

from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError


def fingerprint(*values: Any) -> str:
    """SHA-256, in hex, of values made of dataclasses, numbers, texts and sequences.

    The same in every process and on every machine; different for values that differ in the last
    bit of a number, in a type or in the name of a field.
    """
    return hashlib.sha256(canonical([_plain(value) for value in values])).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON, from which it could be made again. Raises for what has no such form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__qualname__} | fields
    if isinstance(value, enum.Enum):
        return {"kind": type(value).__qualname__, "name": value.name}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return {"float": value.hex()}  # 1.0 is not 1, and infinity has a name
    if value is None or isinstance(value, bool | int | str):
        return value
    raise FixArgumentsError(
        f"a {type(value).__name__} has no fingerprint: a plan consists of dataclasses, numbers and "
        "texts. A sampler of your own has to be a dataclass of these."
    )
