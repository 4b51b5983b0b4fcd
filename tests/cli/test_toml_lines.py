"""The line of a key is found however it is written."""

import pytest

from bevel.cli.toml_lines import line_of

TEXT = """# a comment with steps = 3
run.folder = "x"
[plan]   # steps
  steps = 3
batch_size = 8

[ data ]
source = "a.npz"
["model"]
'kind' = "mlp"
[data.columns]
label = "y"
"""


@pytest.mark.parametrize(
    "keys, line",
    [
        (["plan"], 3),
        (["plan", "steps"], 4),
        (["plan", "epsilon"], 3),
        (["data", "source"], 8),
        (["model", "kind"], 10),
        (["data", "columns", "label"], 12),
        (["run", "folder"], 2),
        (["optimizer", "name"], None),
        ([], None),
    ],
)
def test_the_line_of_a_key_or_of_its_table(keys, line):
    assert line_of(TEXT, keys) == line
