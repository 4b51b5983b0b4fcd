"""A command line runs a command, and its errors become one message and an exit code."""

import importlib
import os
import subprocess
import sys
import types

import pytest

from bevel.cli import dispatch, main
from bevel.errors import FixArgumentsError
from bevel.training.interrupts import RunInterrupted

STATE = types.SimpleNamespace(step=3)


@pytest.fixture(name="command")
def fixture_command(monkeypatch):
    """Replaces `bevel spent` by a function."""

    def replace(function):
        monkeypatch.setitem(sys.modules, "bevel.cli.spent", types.SimpleNamespace(main=function))

    return replace


def raising(error):
    def run(arguments):
        raise error

    return run


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in dispatch.COMMANDS)
    assert "examples:" in printed


def test_no_command_is_wrong_usage(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_an_unknown_command_gets_the_nearest_one(capsys):
    assert main(["trian"]) == 2
    assert "there is no command 'trian'. Did you mean 'train'?" in capsys.readouterr().err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bevel ")


@pytest.mark.parametrize("name", dispatch.COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed
    assert f"bevel {name}" in printed


@pytest.mark.parametrize("name", ["train", "tune", "audit", "explain", "scale", "plan", "data"])
def test_commands_that_run_files_of_a_config_say_so(name, capsys):
    assert main([name, "--help"]) == 0
    assert "files that you trust" in " ".join(capsys.readouterr().out.split())


def test_every_command_is_a_module_with_a_main():
    for name in dispatch.COMMANDS:
        assert callable(importlib.import_module(f"bevel.cli.{name}").main)


def test_a_user_error_is_one_message_without_a_traceback(command, capsys):
    command(raising(FixArgumentsError("write 3 instead.")))
    assert main(["spent", "x"]) == 1
    assert capsys.readouterr().err == "bevel: write 3 instead.\n"


def test_debugging_shows_the_traceback(command, capsys, monkeypatch):
    monkeypatch.setenv("BEVEL_DEBUG", "1")
    command(raising(FixArgumentsError("write 3 instead.")))
    assert main(["spent", "x"]) == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.endswith("bevel: write 3 instead.\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (RunInterrupted(2, STATE, 8, saved=True), 130),
        (RunInterrupted(15, STATE, 8, saved=True), 143),
        (RunInterrupted(1, STATE, 8, saved=True), 129),
        (SystemExit(2), 2),
        (SystemExit(None), 0),
        (SystemExit("no"), 1),
        (PermissionError("not yours"), 1),
        (ModuleNotFoundError("no", name="orbax.checkpoint"), 1),
    ],
    ids=repr,
)
def test_exit_codes(error, code, command):
    command(raising(error))
    assert main(["spent", "x"]) == code


def test_a_missing_extra_says_what_to_install(command, capsys):
    command(raising(ModuleNotFoundError("no", name="sklearn")))
    main(["spent"])
    assert "pip install 'bevel[train]'" in capsys.readouterr().err


def test_an_exception_in_the_users_own_code_is_told_with_its_line(command, capsys):
    command(raising(KeyError("x")))
    line = raising.__code__.co_firstlineno + 2  # of its `raise`
    assert main(["spent"]) == 1
    assert f"test_dispatch.py, line {line}, in run: KeyError: 'x'" in capsys.readouterr().err


@pytest.mark.parametrize("error", ["KeyError('x')", "ModuleNotFoundError('no', name='mine')"])
def test_bugs_of_bevel_are_not_caught(error, command):
    code = compile(f"def run(arguments): raise {error}", dispatch.__file__, "exec")
    names = {}
    exec(code, names)
    command(names["run"])
    with pytest.raises((KeyError, ModuleNotFoundError)):
        main(["spent"])


def test_a_reader_that_goes_away_is_no_error(command, capsys):
    command(raising(BrokenPipeError()))
    assert main(["spent"]) == 141
    assert capsys.readouterr().err == ""


def test_a_reader_that_leaves_a_table_of_rich_is_no_error(command, capsys):
    def run(arguments):
        try:
            raise BrokenPipeError
        except BrokenPipeError:  # as Rich does
            raise SystemExit(1)  # noqa: B904

    command(run)
    assert main(["spent"]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("line", ["--help", "train --help", "data digits"])
def test_a_closed_pipe_ends_without_a_traceback(line):
    run = subprocess.Popen(
        [sys.executable, "-u", "-m", "bevel", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdout.close()
    errors = run.stderr.read()
    run.stderr.close()
    assert (run.wait(), errors) == (141, "")


def test_help_fits_80_columns(capsys):
    for words in ([], *([name] for name in ("train", "demo", "explain", "scale", "spent"))):
        assert main([*words, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, words


def test_a_warning_is_a_line(command, capsys):
    import warnings

    def warn(arguments):
        warnings.simplefilter("always")
        warnings.warn("delta is large", stacklevel=1)
        return 0

    command(warn)
    assert main(["spent"]) == 0
    assert capsys.readouterr().err == "bevel: warning: delta is large\n"


def test_the_module_is_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "bevel", "spnt"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "Did you mean 'spent'?" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("line", ["--help", "data x.csv --json"])
def test_a_full_disk_behind_the_output_is_one_message(line, tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "bevel", *line.split()]
        run = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 1
    assert run.stderr == (
        "bevel: the output cannot be written, because the disk is full: free space and start "
        "again.\n"
    )


def test_a_closed_output_is_no_error_and_its_number_is_taken():
    """A file of the run with the number of standard error would get what libraries print."""
    program = """
import os
from bevel.cli import main, dispatch
dispatch.COMMANDS["probe"] = ""
class probe:
    def main(words):
        descriptor = os.open("/dev/null", os.O_RDONLY)
        print("nobody reads this")
        return 7 if descriptor > 2 else 8
import sys
sys.modules["bevel.cli.probe"] = probe
sys.exit(main(["probe"]))
"""
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    run = subprocess.run(["sh", "-c", shell, sys.executable, program], timeout=120)
    assert run.returncode == 7


def test_a_name_that_the_encoding_does_not_have_is_printed(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    run = subprocess.run(
        [sys.executable, "-m", "bevel", "new", folder], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "udcff has config.toml" in run.stdout
