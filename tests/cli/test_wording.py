"""Errors of commands use the names of options, and never those of the Python interface."""

import dataclasses
import errno
import os
import re

import pytest

from bevel.cli import main
from bevel.cli.config import Config, PlanTable
from bevel.cli.wording import in_cli_words, os_error_in_words

PLAN = "plan --epsilon 3 --delta 1e-5 --examples 6000 --batch-size 100 --steps 50"
TRAIN = "train examples/digits.toml"
# Bad command lines, and what their errors must say.
BAD = {
    f"{PLAN} --batch-size 70 --sampling random_allocation": "steps * batch_size / examples is 0.58",
    f"{PLAN} --batch-size 70.5 --sampling fixed": "batch_size is 70.5",
    f"{PLAN} --batch-size 70 --sampling balls_in_bins": "examples / batch_size is 85.7",
    f"{PLAN} --batch-size 7000": "batch_size is 7000: pass at most 6000",
    f"{PLAN} --batch-size -1": "batch_size is -1.0",
    f"{PLAN} --steps 0": "steps is 0",
    f"{PLAN} --examples 0 --mechanism bandmf": "examples is 0",
    f"{PLAN} --clip-norm -1": "clip_norm is -1.0",
    f"{PLAN} --adapt-clip-norm-to 3": "adapt_clip_norm_to is 3.0",
    f"{PLAN} --noise-multiplier 1": "both epsilon and noise_multiplier",
    f"{PLAN} --relation nope": "relation is 'nope': pass one of ADD_OR_REMOVE_ONE, REPLACE_ONE",
    f"{PLAN} --sampling nope": "sampling is 'nope': write 'poisson'",
    f"{PLAN} --sampling fixed --relation ADD_OR_REMOVE_ONE": "sampling fixed under ADD_OR_REMOVE",
    f"{PLAN} --mechanism bandmf --relation REPLACE_ONE": "sampling cyclic_poisson under",
    f"{PLAN} --mechanism bandmf --bands 49 --batch-size 200": "Use a smaller batch_size or fewer",
    f"{PLAN} --mechanism bandmf --bands 51": "bands is 51: pass at most 50, the number of steps.",
    f"{PLAN} --mechanism bandmf --sampling balls_in_bins --batch-size 70": "examples / batch_size",
    f"{PLAN} --mechanism blt --sampling balls_in_bins --min-sep 7": "Pass batch_size=857.143.",
    f"{PLAN} --mechanism blt --min-sep 0": "min_sep is 0",
    f"{TRAIN} --mesh.axes=foo=8": "Use one of these names in [mesh] axes.",
    f"{TRAIN} --mesh.axes=data=999": "set cpu_devices of [mesh] to 999",
    f"{TRAIN} --mesh.axes=data": 'write, for example, "data=4,model=2".',
    f"{TRAIN} --mesh.axes=data=8 --mesh.rules=tensor": "add model=1 to its axes",
    f"{TRAIN} --run.accept=plan": "keys of the config, such as optimizer.learning_rate",
    f"{TRAIN} --run.keep=0": "--run.keep=0: pass an integer of at least 1.",
    f"{TRAIN} --plan.steps=-3": "--plan.steps=-3: pass an integer of at least 1.",
    f"{TRAIN} --plan.epsilon=-1": "--plan.epsilon=-1.0: pass a positive number",
    f"{TRAIN} --plan.batch-size=-5": "--plan.batch-size=-5.0: pass a positive number",
    f"{TRAIN} --plan.delta=2": "--plan.delta=2.0: pass a number between 0 and 1",
    f"{TRAIN} --data.source=no_such.npz": "no_such.npz",
    f"{TRAIN} --optimizer.ema-decay=2": "--optimizer.ema-decay=2.0: pass a number from 0 to 1",
    f"{TRAIN} --optimizer.warmup-steps=999": "use fewer warm-up steps",
    "scale examples/digits.toml --axes model=2": "give exactly one axis the size -1",
    "scale no_file.py:build_step --batch-size 4": "names a file that does not exist",
}
OPTIONS = {
    field.name
    for table in dataclasses.fields(Config)
    for field in dataclasses.fields(PlanTable if table.name == "plan" else table.default_factory)
}
VALUES = {
    "array_record",
    "breast_cancer",
    "balls_in_bins",
    "random_allocation",
    "cyclic_poisson",
    "no_file",
    "build_step",
}
VALUES |= {"no_such", "x_train", "y_train", "x_test", "y_test"}
PYTHON = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b|\b[A-Z]\w*[a-z][A-Z]\w+\b|\w+\(|\w=\.|`\w+`")


@pytest.mark.parametrize("line", BAD)
def test_errors_name_options_only(line, capsys, tmp_path):
    folder = [f"--run.folder={tmp_path}"] if line.startswith("train") else []
    code = main([*line.split(), *folder])
    printed = capsys.readouterr().err
    assert code == (2 if BAD[line].startswith("--") else 1)
    assert BAD[line] in printed
    assert len(printed.splitlines()) <= 4 and len(printed) < 400
    assert not set(PYTHON.findall(printed)) - OPTIONS - VALUES, printed


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("iterations=0: pass more.", "steps is 0: pass more."),
        ("keep=0: pass more.", "keep is 0: pass more."),
        ("use fewer iterations.", "use fewer steps."),
        ("with RunOptions(ledger='a/b.jsonl'), so", "with --run.ledger=a/b.jsonl, so"),
        ("accept it with RunOptions(accept=['a', 'b']), on the command line --accept a b.",
         "accept it with --accept a b."),
        ("Pass the folder of that run, or another name with RunOptions(name=...).",
         "Pass the folder of that run, or a folder of another name as --run.folder."),
        ("another run: plan.clip.l2_clip_norm 0.5 -> 2.0; plan.clip_norm 0.5 -> 2.0. Restore it.",
         "another run: [plan] clip_norm: 0.5 in the run, 2.0 in the config. Restore it."),
        ("run: data.tune False -> True; plan.mechanism.num_units 9 -> 8; plan.unit.name a -> b. So",
         "run: [data] tune: False in the run, True in the config. So"),
        ("run: plan.batch_size 512.0 -> 300.0; plan.expected_batch_size 512.0 -> 300.0. Its",
         "run: [plan] batch_size: 512.0 in the run, 300.0 in the config. Its"),
        ("run: plan.steps 100 -> 200; the data differ. Its",
         "run: [plan] steps: 100 in the run, 200 in the config; the data differ. Its"),
        ("leave include_raw out", "leave --include-raw out"),
        ("or use NonPrivateConfig.", "or use mechanism 'none'."),
        ("num_bands=3, but BallsInBinsSampling may", "bands is 3, but sampling balls_in_bins may"),
        ("there is no config at a=b.", "there is no config at a=b."),
        ("unknown key 'iterations'", "unknown key 'iterations'"),
        ("there is no config at runs/iterations/a.toml.",
         "there is no config at runs/iterations/a.toml."),
    ],
)  # fmt: skip
def test_library_errors_use_the_names_of_the_command_line(message, words):
    assert in_cli_words(message) == words


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (
            lambda f: (f / "none").read_text(),
            "there is no file or folder {f}/none: check the path.",
        ),
        (lambda f: f.read_text(), "{f} is a folder: pass the path of a file."),
        (lambda f: (f / "file" / "x").mkdir(), "{f}/file/x: a part of this path is a file"),
        (lambda f: (f / "file").mkdir(), "{f}/file exists and is not a folder"),
    ],
)
def test_a_wrong_path_is_told_in_words(action, said, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as caught:
        action(tmp_path)
    text = os_error_in_words(caught.value)
    assert said.format(f=tmp_path) in text and "Errno" not in text


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "/a/b: permission denied. Choose another path"),
        (errno.EROFS, "/a/b is on a file system that is read-only: choose another path."),
        (errno.ENOSPC, "/a/b cannot be written, because the disk is full"),
        (errno.EIO, "/a/b: Input/output error."),
    ],
)
def test_what_the_system_refuses_is_told_in_words(number, said):
    error = OSError(number, os.strerror(number), "/a/b")
    assert said in os_error_in_words(error)


def test_an_error_without_a_path_keeps_its_message():
    assert os_error_in_words(OSError("the cable is loose")) == "the cable is loose"
