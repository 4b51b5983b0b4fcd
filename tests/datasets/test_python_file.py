"""A function is loaded from a file, and what is wrong is named with its key."""

import pytest

from bevel.datasets.python_file import load_function
from bevel.errors import FixArgumentsError


def test_a_function_of_a_file(tmp_path):
    path = tmp_path / "my_records.py"
    path.write_text("def records():\n    return 3\nnumber = 4\n")
    assert load_function(f"{path}:records", "[data] source").function() == 3
    for name in ("record", "number"):
        with pytest.raises(FixArgumentsError, match=rf"\[data\] decode is .* no function '{name}'"):
            load_function(f"{path}:{name}", "[data] decode")


@pytest.mark.parametrize("location", ["records", "none.py:records", ":records"])
def test_a_file_that_is_not_there(location):
    with pytest.raises(FixArgumentsError, match=r"write 'file\.py:function'|there is no file"):
        load_function(location, "[data] source")
