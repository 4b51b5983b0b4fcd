"""The identity of a run: named values are shown, the rest is compared by digests."""

import dataclasses
import json

import pytest
import training_runs as runs

from bevel.batch_selection.randomness import DRAW_VERSION
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.training.identity import (
    Change,
    Identity,
    changes,
    check_accept,
    check_resumable,
    flatten,
    named_values,
    plan_settings,
    read_identity,
    write_identity,
)

BEGUN = Identity(
    settings={"optimizer.learning_rate": 1.0, "plan.steps": 8, "data.source": "a.npz"},
    digests={"data": "d", "optimizer": "o", "loss": "l", "structure": "s"},
    surroundings={"mesh": {"data": [8, "Auto"]}, "versions": {"jax": "0.12"}},
)


def other(part, **changed):
    return dataclasses.replace(BEGUN, **{part: getattr(BEGUN, part) | changed})


def test_an_unchanged_run_resumes():
    assert check_resumable(BEGUN, BEGUN, [], "run") == []


@pytest.mark.parametrize(
    "now, said",
    [
        (other("digests", data="e"), "the data differ"),
        (other("digests", structure="t"), "the structure of"),
        (other("settings", **{"plan.steps": 9}), "plan.steps 8 -> 9"),
    ],
)
def test_another_run_is_refused_whatever_is_accepted(now, said):
    for accept in ([], ["optimizer", "loss"]):
        with pytest.raises(RestoreCheckpointError, match=said):
            check_resumable(BEGUN, now, accept, "run")


def test_only_the_cause_of_several_changes_is_named():
    parts = {"structure.params": "p", "structure.optimizer": "o"}
    begun = dataclasses.replace(BEGUN, digests=BEGUN.digests | parts)

    def names(**changed):
        now = dataclasses.replace(begun, digests=begun.digests | changed)
        return [change.name for change in changes(begun, now)]

    optimizer = {"structure": "t", "structure.optimizer": "q", "optimizer": "r"}
    assert names(**optimizer) == ["structure.optimizer"]
    assert names(**optimizer | {"structure.params": "q"}) == ["structure.params"]
    assert names(**optimizer | {"data": "e"}) == ["data", "structure.optimizer"]
    assert names(structure="t") == ["structure"]  # the average
    now = dataclasses.replace(begun, digests=begun.digests | optimizer)
    for accept in ([], ["optimizer"]):
        with pytest.raises(RestoreCheckpointError, match="run was started with another optimizer"):
            check_resumable(begun, now, accept, "run")
    # Older versions did not record the parts.
    assert [change.name for change in changes(BEGUN, now)] == ["optimizer", "structure"]


def test_a_model_state_that_is_missing_is_a_change():
    stateful = other("digests", **{"model state": "m"})
    for before, now in ((BEGUN, stateful), (stateful, BEGUN)):
        with pytest.raises(RestoreCheckpointError, match="the model_state differs"):
            check_resumable(before, now, [], "run")


def test_another_learning_rate_must_be_accepted():
    slower = other("settings", **{"optimizer.learning_rate": 0.5})
    slower = dataclasses.replace(slower, digests=BEGUN.digests | {"optimizer": "p"})
    said = r"optimizer.learning_rate 1.0 -> 0.5\. .*--accept optimizer.learning_rate"
    with pytest.raises(RestoreCheckpointError, match=said):
        check_resumable(BEGUN, slower, ["loss"], "run")
    for accept in (["optimizer.learning_rate"], ["optimizer"]):
        (found,) = check_resumable(BEGUN, slower, accept, "run")
        assert str(found) == "optimizer.learning_rate 1.0 -> 0.5"
    with pytest.raises(RestoreCheckpointError, match="the optimizer's program differs"):
        check_resumable(BEGUN, other("digests", optimizer="p"), [], "run")


def test_a_newer_jax_may_write_the_same_program_differently():
    newer = other("surroundings", versions={"jax": "0.13"})
    newer = dataclasses.replace(newer, digests=BEGUN.digests | {"loss": "m"})
    with pytest.raises(RestoreCheckpointError, match=r"or versions.jax 0.12 -> 0.13 traces"):
        check_resumable(BEGUN, newer, [], "run")


def test_machines_and_paths_are_noted():
    moved = other("surroundings", mesh={"data": [4, "Auto"]}, versions={"jax": "0.13"})
    moved = dataclasses.replace(moved, settings=BEGUN.settings | {"data.source": "b.npz"})
    noted = check_resumable(BEGUN, moved, [], "run")
    assert {change.kind for change in noted} == {"noted"}
    assert [str(change) for change in noted] == [
        "data.source a.npz -> b.npz",
        "mesh.data [8, 'Auto'] -> [4, 'Auto']",
        "versions.jax 0.12 -> 0.13",
    ]


def test_a_run_does_not_go_on_with_another_draw_of_batches():
    now = dataclasses.replace(BEGUN, settings=BEGUN.settings | {"plan.draw": DRAW_VERSION})
    assert not check_resumable(now, now, [], "run")
    older = dataclasses.replace(BEGUN, settings=BEGUN.settings | {"plan.draw": DRAW_VERSION - 1})
    for before, version in ((older, DRAW_VERSION - 1), (BEGUN, 1)):  # the first was not recorded
        named = f"version {version} of the draw of batches"
        with pytest.raises(RestoreCheckpointError, match=named) as e:
            check_resumable(before, now, ["plan.draw"], "run")
        assert "with the release that started it" in str(e.value)
    assert plan_settings(runs.plan())["plan.draw"] == DRAW_VERSION


def test_what_can_never_change_is_not_accepted():
    check_accept(["optimizer.learning_rate", "loss", "my setting"])
    for wrong, said in ((["data"], "cannot change"), (["plan.steps"], "cannot"), ("loss", "list")):
        with pytest.raises(FixArgumentsError, match=said):
            check_accept(wrong)


def test_a_record_is_read_as_it_was_written(tmp_path):
    assert read_identity(tmp_path) is None
    write_identity(tmp_path, BEGUN)
    assert read_identity(tmp_path) == BEGUN
    assert (tmp_path / "identity.json").stat().st_mode & 0o077 == 0
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(RestoreCheckpointError, match="damaged"):
        read_identity(tmp_path)


def test_the_fields_of_a_plan_have_names():
    one, two = plan_settings(runs.plan()), plan_settings(runs.plan(noise_multiplier=2.0))
    assert json.loads(json.dumps(one)) == one
    assert [name for name in one if one[name] != two[name]] == ["plan.mechanism.noise_multiplier"]
    assert one["plan.mechanism.sampler"] == "CyclicPoissonSampling"


def test_values_are_flat_and_plain():
    @dataclasses.dataclass
    class Part:
        size: int = 3

    assert flatten(named_values({"a": {"b": (1, 2)}, "part": Part()})) == {
        "a.b": [1, 2],
        "part": "Part",
        "part.size": 3,
    }
    assert str(Change("x", list(range(9)), [1])) == "x (9 values) -> [1]"
    assert changes(BEGUN, BEGUN) == []
