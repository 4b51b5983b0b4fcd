"""An exception in the user's own code is told with its file and line."""

import importlib.util

import pytest

from bevel.checks import whole_number
from bevel.cli.user_code import error_in_user_code


def raised(function):
    with pytest.raises(Exception) as caught:
        function()
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


def run_file(path, text):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("mine", path)
    return lambda: spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_syntax_error(tmp_path):
    error = raised(run_file(tmp_path / "mine.py", "x = 1\ndef f()\n"))
    assert error_in_user_code(error) == f"{tmp_path}/mine.py, line 2: expected ':'."


def test_an_exception_of_a_module(tmp_path):
    error = raised(run_file(tmp_path / "mine.py", "\nx = {}['key']\n"))
    assert error_in_user_code(error) == f"{tmp_path}/mine.py, line 2: KeyError: 'key'"


def test_an_exception_of_a_library_that_the_user_called(tmp_path, monkeypatch):
    text = "import json\n\ndef f():\n    json.loads('no')\nf()\n"
    monkeypatch.chdir(tmp_path)
    error = raised(run_file(tmp_path / "mine.py", text))
    assert error_in_user_code(error).startswith("mine.py, line 4, in f: JSONDecodeError: Expecting")


def test_an_exception_of_bevel_alone_is_a_bug():
    error = raised(lambda: whole_number("x", 0))
    error = error.with_traceback(error.__traceback__.tb_next)  # without this file
    assert error_in_user_code(error) is None
