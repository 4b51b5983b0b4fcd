"""Which steps may be run again with fresh noise, and what the bits of a step depend on."""

import pytest

from bevel.errors import RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training.resume import check_composes, fresh_attempt_notice, surroundings


def test_dependent_steps_cannot_be_run_again_with_fresh_noise():
    check_composes(4, 6, ["mesh"], composes_by_step=True)
    with pytest.raises(RestoreCheckpointError, match=r"to 6 were released.*mesh.*Restore"):
        check_composes(4, 6, ["mesh"], composes_by_step=False)


def test_a_fresh_attempt_says_why_and_what_follows():
    said = fresh_attempt_notice(4, 6, 1, ["mesh None -> data=8", "the program differs"])
    assert "steps 4 to 6" in said and "the program differs" in said and "charged again" in said


def test_what_bits_depend_on_is_known():
    one, other = surroundings(make_mesh("data=8")), surroundings(make_mesh("data=4,model=2"))
    assert [name for name in one if one[name] != other[name]] == ["mesh"]
    assert {"versions", "device", "processes", "flags"} <= set(surroundings(None))
