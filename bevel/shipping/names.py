"""The names of parameters in an export: those that people of their framework know."""

from collections.abc import Collection, Iterable

from bevel.errors import FixArgumentsError
from bevel.training.state import path_text

WHOLE = "params"  # the name of parameters that are one array
BOX = "/value"  # the end of a path in Flax NNX, where a Variable is a box around its array


def natural_names(paths: Iterable[str], recorded: Iterable[str]) -> dict[str, str]:
    """Names by path: `layers/0/kernel` for `layers/0/kernel/value`, and the path for all others.

    `recorded` are the paths of the record of the run, which has boxes without their `value`. A
    dictionary with the key "value" keeps it.
    """
    known = set(recorded)
    names = {path: _natural(path, known) or WHOLE for path in paths}
    if len(set(names.values())) < len(names):
        twice = next(name for name in names.values() if list(names.values()).count(name) > 1)
        raise FixArgumentsError(
            f"two parameters would be exported as {twice!r}. Rename one of them and train again."
        )
    return names


def _natural(path: str, known: set[str]) -> str:
    inner = path.removesuffix(BOX)
    return inner if path not in known and inner in known else path


def name_in(names: Collection[str], path: object) -> str:
    """The name, among those of an export, of the leaf of a tree at a path of JAX."""
    text = path_text(path) or WHOLE
    inner = text.removesuffix(BOX)
    return inner if text not in names and inner in names else text
