"""`bevel explain` has a row for each parameter of the config's model."""

import json

from bevel.cli import main


def test_a_row_for_each_parameter(config_file, capsys):
    given = ["explain", str(config_file), "--model.kind=mlp", "--model.widths", "3", "5"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    for shape in ("4x3", "3x5", "5x2"):
        assert shape in printed
    assert "batch of 16:" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main([*given, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["shape"] for row in data["rows"]] == [[3], [4, 3], [5], [3, 5], [2], [5, 2]]
    assert data["batch_size"] == 16
