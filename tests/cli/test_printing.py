"""Errors are printed whole, broken between words on a terminal only."""

import io
import sys

from bevel.cli.printing import print_error, width


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_one_line(capsys):
    print_error("word " * 60)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_terminal_gets_lines_that_fit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys, "stderr", Terminal())
    print_error("word " * 50 + "/a/long/path/" + "x" * 80)
    lines = sys.stderr.getvalue().splitlines()
    assert lines[0].startswith("bevel: word") and len(lines) == 5
    assert all(len(line) <= 70 for line in lines[:-1]) and lines[-1].endswith("x" * 80)


def test_the_width_is_that_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "123")
    assert width() == 123
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    assert width() == 80


def test_a_closed_terminal_is_no_error(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Closed())
    print_error("nobody reads this")
