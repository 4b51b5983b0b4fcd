"""Tabulate the sharding of every array in a tree, and how much each device holds."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from jax.sharding import NamedSharding

from bevel.inspection.leaf_shardings import COMPILER_DECIDES, LeafSharding, leaf_shardings
from bevel.sharding.tables import rich_table, shown_bytes, shown_shape, shown_spec, text_of

HEAD = ("path", "shape", "dtype", "spec", "shard", "bytes/device", "copies", "note")


@dataclasses.dataclass(frozen=True)
class _ArrayRow:
    """One array. Numbers that are not known yet, or that need a device, are None."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    shard_shape: tuple[int, ...] | None
    bytes: int  # of the full array
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
    """The shardings of the arrays of a tree. Print it as a table, or read `rows` and the totals.

    The keys of `bytes_by_device` are the ids of the devices that hold a part of the tree.
    """

    rows: tuple[_ArrayRow, ...]
    bytes_by_device: dict[int, int]

    @property
    def bytes(self) -> int:
        """The size of the tree, each element counted once."""
        return sum(row.bytes for row in self.rows)

    @property
    def most_bytes(self) -> int:
        """Bytes on the fullest device."""
        return max(self.bytes_by_device.values(), default=0)

    @property
    def replication(self) -> float:
        """The mean number of copies: bytes on all devices per byte of the arrays on devices."""
        placed = sum(row.bytes for row in self.rows if row.devices)
        return sum(self.bytes_by_device.values()) / placed if placed else 1.0

    @property
    def imbalance(self) -> float:
        """Bytes on the fullest device divided by the mean over devices; 1 is even."""
        held = list(self.bytes_by_device.values())
        return max(held) * len(held) / sum(held) if sum(held) else 1.0

    def summary(self) -> str:
        unknown = sum(row.devices is None for row in self.rows)
        count = f"{len(self.rows)} array" + "s" * (len(self.rows) != 1)
        text = f"{count} of {shown_bytes(self.bytes)}"
        if unknown:
            text += f", {unknown} of them without a known device"
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
    """Tabulates each array of a tree: path, shape, spec, shard, bytes per device and copies.

    Args:
      tree: arrays, `jax.ShapeDtypeStruct`s (with or without a sharding), or values inside `jit`.
      show: called with the result.

    Inside `jit`, the types of values on Explicit axes contain their shardings. On Auto axes the
    compiler decides, so the result has "?" for them, and `show` (by default `print`) receives the
    full table each time the program is compiled. Values under `vmap`, and in a loss that
    `bevel.clipped_grad` batches, then have the batch dimension in front. Inside `shard_map`, shapes
    are those of one shard.

    This costs nothing at run time, but the compiler cannot remove the described values.
    """

    def report(leaves: list[LeafSharding]) -> None:
        (show or print)(_description(leaves))

    leaves = leaf_shardings(tree, report)
    description = _description(leaves)
    if show is not None and all(leaf.note != COMPILER_DECIDES for leaf in leaves):
        show(description)
    return description


def _description(leaves: list[LeafSharding]) -> Description:
    held = Counter[int]()
    for leaf in leaves:
        held.update(leaf.bytes_by_device())
    return Description(tuple(map(_row_of, leaves)), dict(sorted(held.items())))


def _row_of(leaf: LeafSharding) -> _ArrayRow:
    total = leaf.itemsize * math.prod(leaf.shape)
    columns = leaf.path, leaf.shape, leaf.dtype
    if leaf.sharding is None:
        per_device = total if leaf.copies is not None else None
        shard = leaf.shape if leaf.copies is not None else None
        spec = "P(?)" if leaf.note == COMPILER_DECIDES else "-"
        return _ArrayRow(*columns, spec, shard, total, per_device, None, leaf.copies, leaf.note)
    held = leaf.bytes_by_device()
    if isinstance(leaf.sharding, NamedSharding):
        spec = shown_spec(leaf.sharding.spec)
    else:
        spec = f"device {next(iter(held))}" if len(held) == 1 else "replicated"
        if len(held) > 1 and not leaf.sharding.is_fully_replicated:
            spec = type(leaf.sharding).__name__
    copies = sum(held.values()) / total if total else float(len(held))
    largest = max(held.values())
    return _ArrayRow(*columns, spec, leaf.shard_shape, total, largest, len(held), copies, leaf.note)
