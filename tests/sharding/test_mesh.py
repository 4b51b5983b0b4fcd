"""Meshes from text, and the errors for wrong ones."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from two_processes import launched

from bevel.errors import FixArgumentsError
from bevel.sharding import axis_sizes, make_mesh
from bevel.sharding.mesh import arrange_devices

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
SAME = ["data=4,model=2", " data = 4, model: 2 ", {"data": 4, "model": 2}]
SAME += [(("data", 4), ("model", 2)), [["data", np.int32(4)], ["model", 2]]]


@pytest.mark.parametrize("axes", SAME, ids=str)
def test_however_axes_are_written_the_mesh_is_that_of_jax(axes):
    expected = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO, AUTO))
    assert make_mesh(axes) == expected


def test_minus_one_takes_the_rest():
    assert make_mesh("data=-1,model=2").shape == {"data": 4, "model": 2}
    assert make_mesh("data=-1").shape == {"data": 8}
    assert axis_sizes("pod=2,data=-1", 64) == {"pod": 2, "data": 32}


def test_fewer_devices_than_there_are_may_be_taken():
    assert list(make_mesh("data=2").devices.flat) == jax.devices()[:2]
    backwards = jax.devices()[::-1]
    assert list(make_mesh("data=8", devices=backwards).devices.flat) == backwards


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (AUTO, (AUTO, AUTO)),
        ("explicit", (EXPLICIT, EXPLICIT)),
        (EXPLICIT, (EXPLICIT, EXPLICIT)),
        ({"model": "Explicit"}, (AUTO, EXPLICIT)),
    ],
)
def test_axes_are_of_the_kind_that_is_asked_for(given, expected):
    assert make_mesh("data=4,model=2", axis_types=given).axis_types == expected


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        ("data=4,model", {}, "'model' in axes='data=4,model' is not name=size"),
        ("", {}, "no axes"),
        (8, {}, "axes=8 is not a mesh"),
        ((8, 2), {}, "is not a mesh"),
        ({"data": 2.0}, {}, "size 2.0"),
        ({"data": True}, {}, "size True"),
        ({1: 2}, {}, "1 is not a valid axis name"),
        ({"my axis": 2}, {}, "'my axis' is not a valid axis name"),
        ("data=2,data=4", {}, "two axes are named 'data'"),
        ("data=0", {}, "size 0: use 1 or more, or -1"),
        ("data=-1,model=-1", {}, "set the sizes of all but one"),
        ("data=-1,model=3", {}, "8 devices is not a multiple of the 3"),
        ("data=16", {}, r"needs 16 devices, but there are 8.*jax_num_cpu_devices', 16"),
        ("data=8", {"axis_types": "manual"}, "Manual axes exist only inside jax.shard_map"),
        ("data=8", {"axis_types": {"dta": AUTO}}, r"names 'dta', but axes are \('data',\)"),
        ("data=8", {"between": "data=2"}, "over 1 processes"),
        ("data=8", {"between": "pod=1"}, "name axes of the mesh"),
    ],
)
def test_what_is_wrong_is_said(axes, options, message):
    with pytest.raises(FixArgumentsError, match=message):
        make_mesh(axes, **options)


def test_the_rest_of_an_unknown_number_is_refused():
    with pytest.raises(FixArgumentsError, match="unknown number"):
        axis_sizes("data=-1")


@dataclasses.dataclass(frozen=True)
class Device:
    """The attributes of a device that arranging a mesh reads."""

    id: int
    process_index: int
    slice_index: int | None = None
    platform: str = "cpu"
    device_kind: str = "cpu"


def processes(count, each):
    return [Device(i, i // each) for i in range(count * each)]


@pytest.mark.parametrize(
    ("sizes", "count", "between", "axis"),
    [
        ({"data": 4, "model": 2}, 2, None, 0),
        ({"data": 4, "model": 2}, 2, {"data": 2}, 0),
        ({"data": 4, "model": 2}, 2, "model=2", 1),
        ({"replica": 1, "data": 8}, 4, None, 1),
    ],
)
def test_slow_links_lie_along_the_axis_that_is_asked_for(sizes, count, between, axis):
    found = arrange_devices(sizes, processes(count, 8 // count), between)
    owner = np.vectorize(lambda d: d.process_index)(found)
    blocks = np.split(owner, count, axis=axis)
    assert [np.unique(block).tolist() for block in blocks] == [[i] for i in range(count)]


def test_processes_may_split_two_axes():
    found = arrange_devices({"data": 4, "model": 3}, processes(6, 2), None)
    owner = np.vectorize(lambda d: d.process_index)(found)
    assert owner.tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]


def test_slices_come_before_processes():
    two_slices = [Device(i, i // 2, i // 4) for i in range(8)]
    found = arrange_devices({"data": 2, "model": 4}, two_slices, None)
    assert [[d.slice_index for d in row] for row in found] == [[0] * 4, [1] * 4]
    one_slice = [Device(i, i // 4, 0) for i in range(8)]
    found = arrange_devices({"x": 8}, one_slice[::-1], None)
    assert [d.id for d in found.flat] == [*range(7, -1, -1)]


def test_unequal_processes_are_refused():
    with pytest.raises(FixArgumentsError, match=r"each of the processes: \{0: 4, 1: 2\}"):
        arrange_devices({"data": 6}, processes(2, 4)[:6], None)


PROGRAM = """
import json
import numpy as np
from bevel.sharding import make_mesh, place
from jax.sharding import PartitionSpec as P
owner = lambda mesh: [d.process_index for d in mesh.devices.flat]
x = place(np.arange(8.0), make_mesh("data=8"), P("data"))
print(json.dumps([
    owner(make_mesh("data=4,model=2")),
    owner(make_mesh("data=4,model=2", between="model=2")),
    sorted(float(s.data[0]) for s in x.addressable_shards),
    float(jax.jit(lambda x: x.sum())(x)),
]))
try:
    make_mesh("data=4")
except ValueError as error:
    print(json.dumps(str(error)))
"""


def test_two_processes_make_one_mesh():
    for i, out in enumerate(launched(PROGRAM)):
        lines = [json.loads(line) for line in out.splitlines() if line.startswith(("[[", '"'))]
        assert len(lines) == 2, out[-2000:]
        by_data, by_model, own, total = lines[0]
        assert by_data == [0] * 4 + [1] * 4
        assert by_model == [0, 1] * 4
        assert own == [4.0 * i + k for k in range(4)]
        assert total == 28.0
        assert "leaves processes [1] without a device" in lines[1]
