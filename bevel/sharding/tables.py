"""Format specs, sizes and tables as text."""

import io
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec

GAP = 3  # columns between two cells of a table


def rich_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> Any:
    """A rich table. The columns in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def tables_within(
    width: int,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
) -> list[Any]:
    """One rich table or, if it is wider than `width`, several that begin with the first column.

    Every column is shown. One that does not fit next to the first is folded.
    """
    columns = list(zip(head, *rows, strict=True))
    sizes = [max(map(len, column)) + GAP for column in columns]
    groups: list[list[int]] = [[0]]
    for i in range(1, len(head)):
        if len(groups[-1]) > 1 and sum(sizes[j] for j in groups[-1]) + sizes[i] - GAP > width:
            groups.append([0])
        groups[-1].append(i)
    return [
        rich_table(
            [head[i] for i in group],
            [[row[i] for i in group] for row in rows],
            [place for place, i in enumerate(group) if i in right],
        )
        for group in groups
    ]


def text_of(renderable: Any) -> str:
    """Renders with rich as plain text, as wide as needed and without empty lines."""
    return "\n".join(filter(None, wrapped(renderable, width=10_000).splitlines()))


def text_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> str:
    """A table as plain text. No cell is truncated."""
    return text_of(rich_table(head, rows, right))


def wrapped(*parts: Any, width: int = 160) -> str:
    """Tables and lines as plain text of at most `width` columns. Long cells are wrapped."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part, markup=False, highlight=False, emoji=False)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def shown_spec(spec: PartitionSpec) -> str:
    """A spec as in code: P(None, 'model')."""
    return f"P({', '.join(map(repr, spec.partitions))})"


def shown_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def shown_bytes(count: float) -> str:
    """A number of bytes with three digits and a binary unit, such as KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} PiB"


def short(number: float, unit: str = "") -> str:
    """A number with three digits and a decimal prefix, for FLOPs and bytes sent."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:.3g} E{unit}"
