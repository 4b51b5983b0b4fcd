"""A table of a whole state: where each array lies, how much of it each device holds."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

from jax.sharding import NamedSharding

from bevel.inspection.leaf_shardings import COMPILER_DECIDES, LeafSharding, leaf_shardings
from bevel.sharding.tables import rich_table, shown_bytes, shown_shape, shown_spec, text_of

HEAD = ("path", "shape", "dtype", "spec", "shard", "bytes/device", "copies", "note")


@dataclasses.dataclass(frozen=True)
class _ArrayRow:
    """One array. Numbers of what is not known yet, or on no device, are None."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    shard_shape: tuple[int, ...] | None
    bytes: int  # of the whole
    bytes_per_device: int | None  # the most on one device
    devices: int | None
    replication: float | None  # copies of each element
    note: str = ""

    def cells(self) -> list[str]:
        known = self.shard_shape is not None
        return [
            self.path,
            shown_shape(self.shape),
            self.dtype,
            self.spec,
            shown_shape(self.shard_shape or ()) if known else "?",
            "?" if self.bytes_per_device is None else shown_bytes(self.bytes_per_device),
            "?" if self.replication is None else f"{self.replication:g}",
            self.note,
        ]


@dataclasses.dataclass(frozen=True)
class Description:
    """Where the arrays of a tree lie. Print it for a table, or read `rows` and the totals.

    `bytes_by_device` has the number of each device that holds a part of the tree.
    """

    rows: tuple[_ArrayRow, ...]
    bytes_by_device: dict[int, int]

    @property
    def bytes(self) -> int:
        """Of the whole tree, each element counted once."""
        return sum(row.bytes for row in self.rows)

    @property
    def most_bytes(self) -> int:
        """On the fullest device."""
        return max(self.bytes_by_device.values(), default=0)

    @property
    def replication(self) -> float:
        """Bytes held by all devices, for each byte of the arrays that lie on devices."""
        placed = sum(row.bytes for row in self.rows if row.devices)
        return sum(self.bytes_by_device.values()) / placed if placed else 1.0

    @property
    def imbalance(self) -> float:
        """The fullest device in relation to the mean: 1 is even."""
        held = list(self.bytes_by_device.values())
        return max(held) * len(held) / sum(held) if sum(held) else 1.0

    def summary(self) -> str:
        unknown = sum(row.devices is None for row in self.rows)
        count = f"{len(self.rows)} array" + "s" * (len(self.rows) != 1)
        text = f"{count} of {shown_bytes(self.bytes)}"
        if unknown:
            text += f", {unknown} of them on no device that is known"
        if self.bytes_by_device:
            text += (
                f"; {len(self.bytes_by_device)} devices with at most "
                f"{shown_bytes(self.most_bytes)}, {self.replication:.3g} copies, imbalance "
                f"{self.imbalance:.3g}"
            )
        return text

    def __rich__(self) -> Any:
        from rich.console import Group

        table = rich_table(HEAD, [row.cells() for row in self.rows], right=(5, 6))
        return Group(table, self.summary())

    def __str__(self) -> str:
        return text_of(self.__rich__())


def describe(tree: Any, show: Callable[[Description], Any] | None = None) -> Description:
    """Where each array of a tree lies: path, shape, spec, shard, bytes per device, copies.

    Args:
      tree: arrays, `jax.ShapeDtypeStruct`s (with or without a sharding), values inside `jit`.
      show: called with the result.

    Inside `jit`, types say where values lie on Explicit axes. On Auto axes the compiler decides:
    the result has "?" for them, and `show` (by default, `print`) gets the whole once the program is
    compiled, each time that it is. Values under `vmap`, and in a loss that `bevel.clipped_grad`
    batches, then have the batch in front. Inside `shard_map`, shapes are those of one shard.

    Costs nothing at run time, and keeps the value in the program.
    """

    def report(found: list[LeafSharding]) -> None:
        (show or print)(_description(found))

    found = leaf_shardings(tree, report)
    known = _description(found)
    if show is not None and all(where.note != COMPILER_DECIDES for where in found):
        show(known)
    return known


def _description(found: list[LeafSharding]) -> Description:
    held = Counter[int]()
    for where in found:
        held.update(where.bytes_by_device())
    return Description(tuple(map(_row_of, found)), dict(sorted(held.items())))


def _row_of(where: LeafSharding) -> _ArrayRow:
    whole = where.itemsize
    for size in where.shape:
        whole *= size
    facts = where.path, where.shape, where.dtype
    if where.sharding is None:
        own = whole if where.copies is not None else None
        shard = where.shape if where.copies is not None else None
        spec = "P(?)" if where.note == COMPILER_DECIDES else "-"
        return _ArrayRow(*facts, spec, shard, whole, own, None, where.copies, where.note)
    held = where.bytes_by_device()
    if isinstance(where.sharding, NamedSharding):
        spec = shown_spec(where.sharding.spec)
    else:
        spec = f"device {next(iter(held))}" if len(held) == 1 else "replicated"
        if len(held) > 1 and not where.sharding.is_fully_replicated:
            spec = type(where.sharding).__name__
    copies = sum(held.values()) / whole if whole else float(len(held))
    most = max(held.values())
    return _ArrayRow(*facts, spec, where.shard_shape, whole, most, len(held), copies, where.note)
