"""`bevel plan` shows the plan for a budget."""

from bevel.cli import main

NUMBERS = ["--delta", "1e-3", "--examples", "100", "--batch-size", "10", "--steps", "5"]


def test_numbers_give_a_table(capsys):
    assert main(["plan", "--epsilon", "4", *NUMBERS]) == 0
    printed = capsys.readouterr().out
    assert "epsilon 4 at delta 0.001" in printed
    assert "noise multiplier" in printed
    assert "REPLACE_SPECIAL" in printed


def test_a_config_gives_its_plan(config_file, capsys):
    assert main(["plan", str(config_file), "--plan.steps=7"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("│")[1:3] for line in printed.splitlines() if line.count("│") == 3]
    table = {name.strip(): value.strip() for name, value in rows}
    assert (table["examples"], table["steps"]) == ("64", "7")


def test_a_missing_option_is_named(capsys):
    assert main(["plan", "--epsilon", "4", *NUMBERS[2:]]) == 1
    assert "no delta" in capsys.readouterr().err
    assert main(["plan", "--epsilon", "4"]) == 2
