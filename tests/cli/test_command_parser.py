"""Wrong options are one short message with the nearest option."""

import pytest

from bevel.cli.command_parser import CommandParser


@pytest.fixture(name="parser")
def fixture_parser():
    parser = CommandParser("plan", "About it.", "examples:\n  bevel plan")
    parser.add_argument("config")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--name", choices=["a", "b"])
    return parser


def test_options_are_parsed(parser):
    assert parser.parsed(["c.toml", "--batch-size", "3"]).batch_size == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["c", "--batch_size", "3"], "unknown option --batch_size. Did you mean '--batch-size'?"),
        (["c", "--batch", "3"], "unknown option --batch"),
        (["c", "--batch-size", "x"], "argument --batch-size: invalid int value: 'x'."),
        (["c", "--name", "d"], "argument --name: invalid choice: 'd'"),
        ([], "config is missing."),
    ],
)
def test_wrong_usage_is_one_line(parser, words, message, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parsed(words)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bevel: {message}")
    assert said.endswith("`bevel plan --help` shows the options.\n") and said.count("\n") == 1


def test_help_keeps_its_lines(parser):
    assert "About it." in parser.format_help() and "examples:\n  bevel plan" in parser.format_help()
