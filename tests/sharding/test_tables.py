"""Tables show every cell whole."""

import pytest
from jax.sharding import PartitionSpec as P

from bevel.sharding.tables import (
    rich_table,
    short,
    shown_shape,
    shown_spec,
    tables_within,
    text_table,
    wrapped,
)


def test_no_cell_is_cut_or_read_as_markup():
    long = "x" * 300
    text = text_table(["name", "number"], [[long, "1"], ["[bold]w[/bold]", "23"]], right=[1])
    lines = text.splitlines()
    assert lines[0].split() == ["name", "number"]
    assert long in lines[2]
    assert lines[2].endswith(" 1")
    assert lines[3].startswith("[bold]w[/bold]")
    assert lines[3].endswith("23")


def test_specs_and_shapes_are_written_as_one_writes_them():
    assert shown_spec(P(None, "model")) == "P(None, 'model')"
    assert shown_spec(P(("data", "model"))) == "P(('data', 'model'))"
    assert shown_spec(P()) == "P()"
    assert shown_shape((3, 4)) == "3x4"
    assert shown_shape(()) == "scalar"


@pytest.mark.parametrize(
    "number, text",
    [(0, "0 B"), (999, "999 B"), (1024, "1.02 kB"), (999_600, "1 MB"), (3e21, "3e+03 EB")],
)
def test_numbers_have_three_digits(number, text):
    assert short(number, "B") == text


def test_wrapped_cells_are_whole_and_no_markup():
    made = wrapped(rich_table(["a"], [["x[0]['w'] " * 9]]), "[bold]", width=40)
    assert made.count("x[0]['w']") == 9 and "[bold]" in made
    assert max(map(len, made.splitlines())) <= 40


def test_a_table_that_is_too_wide_is_split_and_shows_every_column():
    head = ["name", "first", "second", "third"]
    rows = [["a", "1" * 9, "2" * 9, "3" * 9], ["b", "x", "y", "z"]]
    assert len(tables_within(80, head, rows)) == 1
    assert len(tables_within(40, head, rows)) == 1
    tables = tables_within(30, head, rows, right=[3])
    text = wrapped(*tables, width=30)
    assert len(tables) == 2 and max(map(len, text.splitlines())) <= 30
    assert all(cell in text for cell in [*head, *rows[0], *rows[1]])
    assert text.count("name") == 2
    assert "        z" in text


def test_a_column_that_fits_nowhere_is_folded():
    (table,) = tables_within(20, ["name", "why"], [["a", "x" * 50]])
    text = wrapped(table, width=20)
    assert text.count("x") == 50 and max(map(len, text.splitlines())) <= 20
