"""The table of promise 6: which steps may be run again, and with what noise."""

import itertools

import pytest

from bevel.errors import RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training.resume import attempt_to_take, differences, surroundings


def taken(**changed):
    fields = {"step": 4, "attempt": 1, "ledger_attempt": 1, "released_until": 6}
    fields |= {"differences": [], "composes_by_step": True}
    return attempt_to_take(**fields | changed)


def test_steps_that_were_not_released_are_free_whatever_has_changed():
    for attempt, changed, composes in itertools.product((0, 1), ([], ["mesh"]), (True, False)):
        found = taken(
            released_until=4, attempt=attempt, differences=changed, composes_by_step=composes
        )
        assert found == 1


def test_released_steps_are_free_only_if_they_give_the_same_bits():
    assert taken() == 1
    assert taken(differences=["mesh"]) == 2
    assert taken(attempt=0) == 2  # the state is not one of the attempt that released them


def test_tied_steps_cannot_be_run_again_with_fresh_noise():
    assert taken(composes_by_step=False) == 1
    with pytest.raises(RestoreCheckpointError, match=r"up to 6 were released.*mesh is another"):
        taken(differences=["mesh is another"], composes_by_step=False)


def test_what_bits_depend_on_is_compared():
    one = surroundings(make_mesh("data=8")) | {"program": "p"}
    assert differences(one, dict(one)) == []
    other = surroundings(make_mesh("data=4,model=2")) | {"program": "p"}
    assert [text.split()[0] for text in differences(one, other)] == ["mesh"]
    assert differences(one, one | {"program": "q"}) == ["program is q, and was p"]
    assert {"versions", "device", "processes", "flags"} <= set(surroundings(None))


def test_a_gpu_repeats_its_bits_only_if_it_was_told_to():
    there = {"device": "gpu H200", "flags": ""}
    assert "deterministic_ops" in differences(there, there)[0]
    there["flags"] = "--xla_gpu_deterministic_ops=true"
    assert differences(there, there) == []
