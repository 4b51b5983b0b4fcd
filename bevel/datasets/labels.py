"""Labels: turns the y of records into class numbers or scaled numbers, as the config declares."""

import dataclasses

import numpy as np

from bevel.checks import in_one_line
from bevel.datasets.arrow_values import NO_VALUE
from bevel.datasets.columns import scaled_to_one
from bevel.datasets.data_set import DataSpec
from bevel.datasets.options import DataTable
from bevel.errors import FixArgumentsError, FixDataError

SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Labels:
    """What y is: one of `count` classes, with `names` if they are not numbers, or a number.

    Attributes:
      count: the number of classes, or None for numbers.
      names: the labels in the order of class numbers, or empty for labels from 0 to count - 1.
      bounds: the range of a number, or empty for classes.
    """

    count: int | None
    names: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    def described(self, spec: DataSpec) -> DataSpec:
        """The description of inputs, with what is predicted added to it."""
        if self.bounds:
            low, high = self.bounds
            return dataclasses.replace(spec, target="number", target_range=(low, high))
        return dataclasses.replace(spec, classes=self.count)

    def encode(self, values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns y for the model, and which labels are missing (their y is 0).

        `values` has one text or number per record. Raises for a label that is not declared.
        """
        if self.names:
            return self._numbered(values, where)
        if values.dtype.kind in "USO":
            raise FixDataError(
                f"{where} holds text, such as {str(values[0])!r}: list the labels in [data], as in "
                f"classes = {_listed(values)}."
            )
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        known = values[~missing]
        if self.bounds:
            low, high = self.bounds
            y = np.where(missing, 0.0, scaled_to_one(values.astype(np.float64), low, high))
            return y.astype(np.float32), missing
        assert self.count is not None
        wrong = (known < 0) | (known >= self.count) | (known != np.floor(known))
        if wrong.any():
            raise FixDataError(
                f"{where}: {int(wrong.sum())} labels are not class numbers from 0 to "
                f"{self.count - 1}, such as {known[wrong][0]:g}. Labels with other names are "
                f"listed in [data], as in classes = {_listed(known)}."
            )
        return np.where(missing, 0, values).astype(np.int32), missing

    def _numbered(self, values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
        distinct, positions = np.unique(as_texts(values), return_inverse=True)
        number = {name: index for index, name in enumerate(self.names)}
        found = [number.get(text, -1 if text in NO_VALUE else -2) for text in distinct.tolist()]
        numbers = np.array(found, np.int32)[positions]
        if (numbers == -2).any():
            other = distinct[found.index(-2)]
            raise FixDataError(
                f"{where}: {int((numbers == -2).sum())} labels are not in the list of classes of "
                f"[data], such as {str(other)!r}. Add them to the list, or correct the records."
            )
        return np.maximum(numbers, 0), numbers == -1


def labels_of(table: DataTable) -> Labels | None:
    """The labels that a config declares. None if it declares no classes, or predicts tokens."""
    if table.target != "number" and table.y_range:
        raise FixArgumentsError(
            "[data] has y_range, but target is "
            f"{table.target!r}: write target = 'number', or leave y_range out."
        )
    if table.target != "class" and table.classes is not None:
        raise FixArgumentsError(
            f"[data] has classes, but target is {table.target!r}: leave one of them out."
        )
    match table.target:
        case "next token":
            return None
        case "number":
            if len(table.y_range) != 2 or not table.y_range[0] < table.y_range[1]:
                raise FixArgumentsError(
                    f"[data] y_range is {list(table.y_range)}: for target 'number', write "
                    "y_range = [low, high] with the public range of y. Others are clipped to it."
                )
            return Labels(None, bounds=table.y_range)
    if isinstance(table.classes, tuple):
        names = tuple(name.strip() for name in table.classes)
        if len(set(names)) != len(names) or len(names) < 2:
            raise FixArgumentsError(
                f"[data] classes is {list(names)}: list at least two labels, each once."
            )
        return Labels(len(names), names)
    if table.classes is not None and table.classes < 2:
        raise FixArgumentsError(f"[data] classes is {table.classes}: there are at least 2 classes.")
    return None if table.classes is None else Labels(table.classes)


def declared_labels(labels: Labels | None, values: np.ndarray, where: str) -> Labels:
    """The labels, or an error that says what to declare for these values."""
    if labels is not None:
        return labels
    if values.dtype.kind in "iu" and len(values) and values.min() >= 0:
        found = f"class numbers from {values.min()} to {values.max()}"
        advice = f"classes = {int(values.max()) + 1}"
        if values.max() >= 10_000:
            found, advice = f"integers up to {values.max()}", "target = 'number' and y_range"
    else:
        found, advice = "labels", f"classes = {_listed(values)}"
    raise FixDataError(
        f"[data] does not declare the classes, which become public with the model. {where} holds "
        f"{found}: write {advice} in [data], if that may be known."
    )


def check_missing(missing: np.ndarray, drop: bool, where: str) -> None:
    """Raises if records have no label, unless `drop` says that they are left out.

    To leave out a record because of its own content changes nothing for other records, so the
    data sets of neighbours still differ in one record at most.
    """
    if missing.any() and not drop:
        raise FixDataError(
            f"{where}: {int(missing.sum())} of {len(missing)} records have no label, the first in "
            f"row {int(np.argmax(missing)) + 1}. Write drop_missing = true in [data] to leave them "
            "out."
        )


def as_texts(values: np.ndarray) -> np.ndarray:
    """Labels as texts. Whole numbers have no decimal point, and missing ones are empty."""
    if values.dtype.kind == "f":
        return np.array(["" if v != v else f"{v:.17g}" for v in values.tolist()], str)
    return np.char.strip(values.astype(str)) if len(values) else np.zeros(0, "U1")


def _listed(values: np.ndarray) -> str:
    distinct = np.unique(as_texts(values)).tolist()
    shown = ", ".join(f'"{text}"' for text in distinct[:SHOWN] if text not in NO_VALUE)
    return in_one_line(f"[{shown}{', ...' if len(distinct) > SHOWN else ''}]")
