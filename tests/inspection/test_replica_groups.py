import math

import pytest

from bevel.errors import FixArgumentsError
from bevel.inspection.replica_groups import axes_of_groups, parse_groups, parse_pairs

ROWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
COLUMNS = [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    "text, groups",
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ROWS),
        ("{{0,2,4,6},{1,3,5,7}}", COLUMNS),
        ("{}", [list(range(8))]),
        ("[4,2]<=[8]", ROWS),
        ("[2,4]<=[4,2]T(1,0)", COLUMNS),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['data'=4,'model'=2] {'data'}", COLUMNS),
        ("mesh['data'=4,'model'=2] {'model'}", ROWS),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=8] {'a'}", [list(range(8))]),
        ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=8] {'a':(4)2}", ROWS),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", COLUMNS),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", ROWS),
        ("mesh[a=2,b=4], device_ids=([4,2]T(1,0)) {a,b}", [[0, 2, 4, 6, 1, 3, 5, 7]]),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", [[0, 2], [1, 3]]),
    ],
)
def test_every_notation(text, groups):
    assert parse_groups(text, 8) == groups


@pytest.mark.parametrize(
    "text",
    [
        "{0,1",
        "mesh['a'=8] {'a':(1)2,'a':(4)2}",
        "mesh['a'=8] {'b'}",
        "mesh['a'=2], device_ids=(0,2) {'a'}",
    ],
)
def test_what_is_not_understood_raises(text):
    with pytest.raises(FixArgumentsError, match="unknown notation"):
        parse_groups(text, 8)


MESH = {"data": 4, "model": 2}


@pytest.mark.parametrize(
    "groups, axes, spans",
    [
        (ROWS, ("model",), True),
        (COLUMNS, ("data",), True),
        ([list(range(8))], ("data", "model"), True),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("data",), False),
        ([[i] for i in range(8)], (), True),
    ],
)
def test_axes_are_those_that_differ_in_a_group(groups, axes, spans):
    assert axes_of_groups(groups, MESH) == (axes, spans)


def test_axes_of_pairs():
    ring = parse_pairs("{{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}")
    assert axes_of_groups(list(map(list, ring)), MESH)[0] == ("data",)


def test_a_mesh_that_is_too_small_is_refused():
    with pytest.raises(FixArgumentsError, match="device 7"):
        axes_of_groups(ROWS, {"data": math.prod((2, 2))})
