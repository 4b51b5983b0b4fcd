"""Tables show every cell whole."""

import pytest
from jax.sharding import PartitionSpec as P

from bevel.sharding.tables import (
    rich_table,
    short,
    shown_shape,
    shown_spec,
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
