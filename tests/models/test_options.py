"""The defaults of the [model] table."""

from bevel.models import ModelTable


def test_by_default_the_model_and_its_sizes_follow_from_the_data():
    table = ModelTable()
    assert table.kind == "auto"
    assert (table.widths, table.width, table.depth, table.module) == (None,) * 4
