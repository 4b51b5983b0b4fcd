"""Tables as text, and numbers in three digits."""

import io
from typing import Any


def short(number: float, unit: str = "") -> str:
    """A number in three digits and a unit."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:.3g} E{unit}"


def printed(*parts: Any, width: int = 160) -> str:
    """What `rich` makes of tables and lines, as plain text."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, highlight=False, emoji=False)
    for part in parts:
        console.print(part, markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def table(title: str, columns: dict[str, str], rows: list[list[Any]]) -> Any:
    """A `rich` table. `columns`: name to side, "left" or "right"."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left")
    for name, justify in columns.items():
        made.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made
