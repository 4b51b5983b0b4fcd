import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.report.mesh_chart import axes_of, layouts, parts
from bevel.sharding import make_mesh
from bevel.sharding.tables import shown_spec


@pytest.mark.parametrize("axes", ["data=8", "data=4,model=2", "a=2,b=2,c=2"])
def test_devices_with_the_same_number_hold_the_same_part(axes):
    mesh = make_mesh(axes)
    names = list(mesh.shape)
    specs = [P(), P(names[0]), P(None, names[-1]), P(names[-1], names[0]), P(tuple(names[::-1]))]
    for spec in specs if len(names) > 1 else specs[:3]:
        numbers = parts(axes_of(shown_spec(spec), mesh.shape), mesh.shape)
        held = NamedSharding(mesh, spec).devices_indices_map((8, 8))
        indices = [str(held[device]) for device in mesh.devices.flat]
        same = {(i, j): indices[i] == indices[j] for i in range(8) for j in range(8)}
        assert same == {(i, j): numbers[i] == numbers[j] for i, j in same}, spec
        assert set(numbers) == set(range(max(numbers) + 1))
    assert jax.device_count() == 8


def test_arrays_with_the_same_sharding_share_a_chart():
    rows = [
        {"spec": "P('model')", "bytes": 5},
        {"spec": "P(None, 'model')", "bytes": 7},
        {"spec": "P()", "bytes": 3},
        {"spec": "device 0", "bytes": 1},
    ]
    split, replicated = layouts(rows, {"data": 4, "model": 2})
    assert (split.axes, split.arrays, split.bytes) == (("model",), 2, 12)
    assert split.title == "sharded over model" and replicated.title == "replicated"
    assert split.svg.count("<rect") == replicated.svg.count("<rect") == 8
    assert split.svg.count(">0</text>") == split.svg.count(">1</text>") == 4


def test_large_meshes_and_one_device_are_not_drawn():
    rows = [{"spec": "P()", "bytes": 3}]
    assert layouts(rows, {}) == [] and layouts(rows, {"data": 1024}) == []


def test_names_of_axes_are_escaped():
    (layout,) = layouts([{"spec": "P()", "bytes": 3}], {"<b>": 2, "m": 2})
    assert "<b>" not in layout.svg and "&lt;b&gt;" in layout.svg
