"""`bevel explain` has a row for each parameter of the config's model."""

from bevel.cli import main


def test_a_row_for_each_parameter(config_file, capsys):
    given = ["explain", str(config_file), "--model.kind=mlp", "--model.widths", "3", "5"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    shapes = [line.split()[1] for line in printed.splitlines() if line.startswith(("[", "dense"))]
    assert "4x3" in printed and "3x5" in printed and "5x2" in printed, shapes
    assert "batch of 16:" in printed
