"""How specs and tables are written."""

import io
from collections.abc import Sequence

from jax.sharding import PartitionSpec


def text_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> str:
    """A table in which no cell is cut; columns in `right` are numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    width = sum(max(len(line[i]) for line in (head, *rows)) + 3 for i in range(len(head)))
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def shown_spec(spec: PartitionSpec) -> str:
    """A spec as one writes it: P(None, 'model')."""
    return f"P({', '.join(map(repr, spec.partitions))})"


def shown_shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
