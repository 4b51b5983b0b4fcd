import pytest

from bevel.sharding.tables import printed, short, table


@pytest.mark.parametrize(
    "number, text",
    [(0, "0 B"), (999, "999 B"), (1024, "1.02 kB"), (999_600, "1 MB"), (3e21, "3e+03 EB")],
)
def test_numbers_have_three_digits(number, text):
    assert short(number, "B") == text


def test_cells_are_not_markup():
    made = printed(table("title", {"a": "left", "b": "right"}, [["x[0]['w']", 3]]), "[bold]")
    assert "x[0]['w']" in made and "[bold]" in made and "title" in made
