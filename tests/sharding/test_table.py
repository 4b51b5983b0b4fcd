"""Tables show every cell whole."""

from jax.sharding import PartitionSpec as P

from bevel.sharding.table import shown_shape, shown_spec, text_table


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
