"""A TOML config is accepted, or refused by one message with its file, before anything is run."""

import os
import subprocess
import sys

import hypothesis
import pytest
from bad_input.rows import limits
from hypothesis import strategies as st

from bevel.cli.config import Config, read_config
from bevel.cli.toml_lines import line_of
from bevel.errors import BevelError, FixArgumentsError

CASES = int(os.environ.get("BEVEL_FUZZ_CASES", "2000"))
GOOD = {
    "plan": {"batch_size": "8", "steps": "5", "delta": "1e-5", "epsilon": "1.0"},
    "data": {"source": "'digits'"},
    "model": {"kind": "'mlp'", "widths": "[8, 8]"},
    "optimizer": {"learning_rate": "0.5", "momentum": "0.9"},
    "mesh": {"axes": "'data=-1'"},
    "run": {"folder": "'runs/run'", "keep": "3"},
}
KEYS = [*{key for table in GOOD.values() for key in table}, "views", "classes", "columns", "stepz"]
VALUES = [
    "0", "-1", "3", "1e-5", "0.5", "-0.5", "nan", "inf", "-inf", "1e999", "true", "false",
    "9" * 30, "9" * 400, "9" * 5000, "0x7fffffffffffffff", "''", "'text'", '"two\\nlines"',
    "'''\nlong\n'''", '"\\u0000"', "[]", "[1, 2]", "[-1]", "[nan]", "['a', 1]", "[[1], [2]]",
    "{}", "{a = 1}", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[" * 3000 + "]" * 3000,
]  # fmt: skip
STRAY = ["[plan]", "steps = 3", "= 3", "plan = 3", "\0", "é = 1", "[[run]]", "a.b.c = 1", "#"]
TABLES = [*GOOD, "augmentation", "plam", "plan.steps", "data.columns", '"pl\\nan"', '""', "[plan]"]


def written(tables: dict[str, dict[str, str]]) -> str:
    return "\n\n".join(
        f"[{name}]\n" + "\n".join(map(" = ".join, keys.items())) for name, keys in tables.items()
    )


@st.composite
def configs(draw: st.DrawFn) -> str:
    """The text of a config that is valid, but for a few changes."""
    tables = {name: dict(keys) for name, keys in GOOD.items()}
    for _ in range(draw(st.integers(0, 3))):
        table = draw(st.sampled_from(TABLES))
        keys = tables.setdefault(table, {})
        key = draw(st.sampled_from([*keys, *KEYS]))
        keys[key] = draw(st.sampled_from(VALUES))
    lines = [
        f"[{name}]\n" + "\n".join(map(" = ".join, keys.items())) for name, keys in tables.items()
    ]
    for _ in range(draw(st.integers(0, 1))):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(STRAY)))
    return "\n".join(lines)


def problem(text: str, path) -> str | None:
    path.write_text(text, encoding="utf-8")
    try:
        with limits():
            config = read_config(path)
    except BevelError as error:
        message = str(error)
        one = len(message.splitlines()) <= 4 and len(message) < 1500
        return None if one and str(path) in message else f"bad message: {message!r}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"
    assert isinstance(config, Config)
    return _sense(config)


def _sense(config: Config) -> str | None:
    """What no run can have, in a config that was accepted."""
    plan, run, optimizer = config.plan, config.run, config.optimizer
    counts = [plan.steps, plan.bands, run.keep, run.checkpoint_every, *(config.model.widths or [1])]
    lengths = [plan.batch_size, plan.epsilon or 1, optimizer.learning_rate, plan.clip_norm]
    shares = [plan.delta or 0.5, optimizer.momentum]
    sense = (
        all(type(n) is int and 1 <= n <= 2**53 for n in counts)
        and all(0 < x < float("inf") for x in lengths)
        and all(0 <= x < 1 for x in shares)
        and bool(run.folder.strip("\0"))
    )
    return None if sense else f"accepted {config}"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("configs") / "run.toml"


def test_a_valid_config_is_accepted(path):
    assert problem(written(GOOD), path) is None and read_config(path).plan.steps == 5


@hypothesis.settings(max_examples=min(100, CASES))
@hypothesis.given(text=configs())
def test_a_few_bad_configs(path, text):
    assert problem(text, path) is None


@pytest.mark.full
@hypothesis.settings(max_examples=CASES, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(text=configs() | st.text(max_size=40))
def test_many_bad_configs(path, text):
    assert problem(text, path) is None


@pytest.mark.parametrize("table", GOOD)
@pytest.mark.parametrize("value", VALUES)
def test_every_value_of_every_key(path, table, value):
    for key in GOOD[table]:
        text = written(GOOD | {table: GOOD[table] | {key: value}})
        assert problem(text, path) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("steps = -5", r"line 3: \[plan\] steps=-5: pass an integer of at least 1"),
        ("steps = 5\nepsilon = nan", r"line 4: \[plan\] epsilon=nan: pass a positive number"),
        ("steps = 5\n[model]\nwidths = [0]", r"line 5: \[model\] a size in widths=0"),
        ("steps = 5\n[run]\nfolder = ''", r"line 5: \[run\] folder=''"),
        ("steps = " + "9" * 5000, "is not valid TOML: Exceeds the limit"),
        ("steps = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_the_message_names_file_line_and_key(path, line, message):
    path.write_text(f"[plan]\nbatch_size = 8\n{line}\n")
    with pytest.raises(FixArgumentsError, match=message):
        read_config(path)


@pytest.mark.parametrize("name", ["", "folder", "missing.toml", "x" * 300, "a\0b"])
def test_a_path_that_is_no_config_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FixArgumentsError):
        read_config(tmp_path / name)


def test_lines_of_any_text_are_found_or_not():
    assert line_of("[plan]\nsteps = 3", ("plan", "steps")) == 2
    assert line_of("\0= [\n[[", ("plan",)) is None


@pytest.mark.full
@pytest.mark.parametrize("command", ["train", "explain", "audit", "plan"])
def test_a_command_answers_with_one_message(tmp_path, command):
    """Exit code 1 and no traceback, before any file that the config names is run."""
    trap = tmp_path / "model.py"
    trap.write_text("raise SystemExit('the model file was run')\n")
    config = tmp_path / "run.toml"
    config.write_text(f"[plan]\nbatch_size = 8\nsteps = -5\n[model]\nmodule = '{trap}:build'\n")
    run = subprocess.run(
        [sys.executable, "-m", "bevel", command, str(config)], capture_output=True, text=True
    )
    assert run.returncode == 1, run.stderr
    assert "line 3: [plan] steps=-5" in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr and "was run" not in run.stderr
