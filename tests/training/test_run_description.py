"""The fields of run.json. Whole files are tested in test_folder_run.py."""

import types

import jax

from bevel import sharding
from bevel.training.run_description import collectives, commit_of_caller, version_of


def test_versions_and_commit_are_none_where_there_are_none(tmp_path, monkeypatch):
    assert version_of("jax") == jax.__version__ and version_of("no-such-package") is None
    monkeypatch.chdir(tmp_path)
    assert commit_of_caller() is None


def test_collectives_are_those_of_the_compiled_step_where_they_can_be_read(monkeypatch):
    fields = {"kind": "all-reduce", "dtype": "f32", "shapes": [[2]], "bytes": 8, "group_size": 4}
    fields |= {"axes": ["data"], "times": 1, "sent": 12.0, "line": "loss.py:3"}
    fields |= {"operation": "jit(step)/add"}
    report = types.SimpleNamespace(to_dict=lambda: {"collectives": [fields | {"name": "x"}]})
    programs = types.SimpleNamespace(ahead=True, of_size=lambda size: size)
    monkeypatch.setattr(sharding, "inspect_step", lambda step: report, raising=False)
    assert collectives(programs, (8,)) == [fields]
    monkeypatch.setattr(sharding, "inspect_step", lambda step: 1 / 0, raising=False)
    assert collectives(programs, (8,)) is None
    programs.ahead = False
    assert collectives(programs, (8,)) is None
