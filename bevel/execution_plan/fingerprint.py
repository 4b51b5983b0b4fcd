"""Fingerprints: hashes of what the guarantee and the released numbers depend on."""

import dataclasses
import enum
import hashlib
from typing import Any

import numpy as np

from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError


def fingerprint(*values: Any) -> str:
    """Returns the SHA-256, in hex, of values made of dataclasses, numbers, strings and sequences.

    It is the same in every process and on every machine. It differs for values that differ in the
    last bit of a number, in a type or in the name of a field.
    """
    return hashlib.sha256(canonical([_plain(value) for value in values])).hexdigest()


def recorded_fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by their names in fingerprints and run records.

    A renamed field or class keeps its old `recorded_name` there, so that earlier runs can resume.
    """
    fields = dataclasses.fields(value)
    return {f.metadata.get("recorded_name", f.name): getattr(value, f.name) for f in fields}


def _plain(value: Any) -> Any:
    """Returns a value as JSON without loss; raises for types that have no such form."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: _plain(item) for name, item in recorded_fields(value).items()}
        return {"kind": getattr(type(value), "recorded_name", type(value).__qualname__)} | fields
    if isinstance(value, enum.Enum):
        return {"kind": type(value).__qualname__, "name": value.name}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return {"float": value.hex()}  # distinguishes 1.0 from 1, and represents infinity
    if value is None or isinstance(value, bool | int | str):
        return value
    raise FixArgumentsError(
        f"a {type(value).__name__} has no fingerprint. Make your sampler a dataclass whose fields "
        "are numbers, strings, enums, sequences or dataclasses."
    )
