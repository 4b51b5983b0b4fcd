"""`bevel data FILE`: shows what is in a data set, and proposes the [data] table of a config."""

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.datasets import DataTable
from bevel.errors import FixArgumentsError

if TYPE_CHECKING:
    from bevel.datasets.column_scan import ColumnOverview
    from bevel.datasets.overview import Overview

from bevel.cli.command_parser import CommandParser
from bevel.cli.toml_tables import not_toml
from bevel.output_files import text_before, write_file

EXAMPLES = """examples:
  bevel data adult.csv
  bevel data adult.csv --label income --write config.toml
  bevel data visits.parquet --label outcome --user patient_id
  bevel data photos/                   # photos/cat/1.png, photos/dog/2.png
  bevel data my_data.py:records

my_data.py is Python code, which this command runs: use files that you trust.
What it prints is computed from the records: it is for the owner of the data.
docs/data.md describes all formats.
"""
WIDTH = 80
MOST_CLASSES = 12
NOT_PRIVATE = "NOT PRIVATE: all of this is computed from the records. Do not share it."
PUBLIC = (
    "Everything in a config becomes public with the model: the names of columns, classes and "
    "categories, and the ranges. No epsilon covers them. The values above were found in the "
    "records. Check each one, and write what is publicly known instead, such as age = [0, 100]."
)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "data",
        "Show what is in a data set, and propose the [data] table of a config.",
        EXAMPLES,
    )
    parser.add_argument("source", metavar="FILE", help="a file, a folder, or file.py:function")
    parser.add_argument("--label", metavar="NAME", help="the column or array to predict")
    parser.add_argument("--user", metavar="NAME", help="the column or array of user ids")
    parser.add_argument("--delimiter", default=",", help="what separates the columns of a .csv")
    parser.add_argument("--header", metavar="A,B,C", help="names of columns, if a .csv has none")
    parser.add_argument("--decode", metavar="F", help="file.py:function, for ArrayRecord files")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--write", type=Path, metavar="CONFIG.toml", help="write the table there")
    options = parser.parsed(arguments)
    from bevel.datasets.overview import overview_of

    header = tuple(name.strip() for name in options.header.split(",")) if options.header else ()
    table = DataTable(
        options.source, delimiter=options.delimiter, header=header, decode=options.decode
    )
    overview = overview_of(table, options.label, options.user)
    if options.json:
        print(json.dumps(_as_json(overview), indent=1, ensure_ascii=False))
    else:
        _print(overview)
    if options.write is not None:
        _write(overview, options.write)
        if not options.json:
            print(f"\nwrote [data] to {options.write}: check its values before you train.")
    return 0


def _as_json(overview: "Overview") -> dict[str, Any]:
    values = dataclasses.asdict(overview)
    for column, found in zip(values["columns"] or [], overview.columns or [], strict=True):
        column["looks_like"] = found.looks_like
    return {"not_private": True} | values | {"toml": overview.proposal.toml()}


def _print(overview: "Overview") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(f"{overview.source}: {overview.records:,} records ({overview.format})")
    console.print(Text(NOT_PRIVATE, style="bold yellow"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    if overview.columns is not None:
        for name in ("column", "type", "missing", "distinct"):
            table.add_column(name, justify="right" if name in ("missing", "distinct") else "left")
        table.add_column("values", overflow="ellipsis", no_wrap=True)
        for column in overview.columns:
            distinct = "many" if column.distinct is None else f"{column.distinct:,}"
            table.add_row(
                Text(column.name, overflow="ellipsis", no_wrap=True),
                column.kind,
                f"{column.missing:,}" if column.missing else "",
                distinct if column.kind != "nested" else "",
                Text(_values(column), overflow="ellipsis", no_wrap=True),
            )
    else:
        table.show_header = False
        for name, found in overview.details:
            table.add_row(Text(name), Text(found))
    console.print()
    console.print(table)
    if overview.classes:
        shown = [f"{name}: {count:,}" for name, count in overview.classes.items()]
        more = [f"... {len(shown) - MOST_CLASSES} more"] if len(shown) > MOST_CLASSES else []
        target = overview.proposal.data.get("y")
        label = f" of {target}" if target else ""
        console.print(f"\nclasses{label}: {', '.join([*shown[:MOST_CLASSES], *more])}")
    for warning in overview.warnings:
        console.print(f"\nnote: {warning}")
    console.print("\nFor the config:\n")
    print(overview.proposal.toml())  # to be copied, so nothing may be wrapped
    console.print(PUBLIC)


def _values(column: "ColumnOverview") -> str:
    if column.looks_like:
        return f"looks like {'an' if column.looks_like[0] == 'i' else 'a'} {column.looks_like}"
    if column.kind == "number" and column.low is not None:
        return f"{column.low:g} to {column.high:g}"
    if column.kind == "date":
        return f"{column.low} to {column.high}"
    return ", ".join(list(column.counts)[:20])


def _write(overview: "Overview", path: Path) -> None:
    """Adds the [data] table to a config, or begins one. An existing [data] is never replaced."""
    text = text_before(path)
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise not_toml(path, error) from None
    if "data" in tables:
        raise FixArgumentsError(
            f"{path} already has [data]: remove it first, or write to another file."
        )
    parts = [text.rstrip(), overview.proposal.toml().rstrip()]
    write_file(path, ("\n\n".join(part for part in parts if part) + "\n").encode())
