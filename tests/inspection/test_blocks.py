"""Grids: the blocks are the shards, and list the devices that hold them."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bevel.inspection.blocks import drawn_dimensions, grids, number_ranges
from bevel.inspection.leaf_shardings import leaf_shardings
from bevel.sharding import make_mesh, place

MESHES = {"8": make_mesh("a=8"), "42": make_mesh("a=4,b=2"), "222": make_mesh("a=2,b=2,c=2")}

CASES = [
    ("8", (), P()),
    ("8", (16,), P("a")),
    ("42", (16,), P("b")),
    ("42", (8, 8), P("b", "a")),
    ("42", (8, 8), P(("a", "b"))),
    ("42", (4, 3, 2), P("a", None, "b")),
    ("222", (4, 4, 4), P("a", "b", "c")),
    ("222", (2, 4, 3, 4, 2), P("a", "b", None, "c")),
]


@pytest.mark.parametrize(("mesh", "shape", "spec"), CASES)
def test_blocks_are_the_shards(mesh, shape, spec):
    array = place(np.zeros(shape, np.float32), MESHES[mesh], spec)
    (leaf,) = leaf_shardings(array)
    found, hidden = grids(leaf)
    assert hidden == 0
    expected = {}
    for shard in array.addressable_shards:
        box = tuple(part.indices(n)[:2] for part, n in zip(shard.index, shape, strict=True))
        expected.setdefault(box, set()).add(shard.device.id)
    drawn = [cell for grid in found for row in grid.devices for cell in row]
    assert sorted(map(sorted, expected.values())) == sorted(map(list, drawn))
    assert len(found) == (2 if mesh == "222" else 1)


def test_a_block_is_where_its_row_and_column_say():
    array = place(np.zeros((4, 3, 2), np.float32), MESHES["42"], P("a", None, "b"))
    ((grid,), _) = grids(*leaf_shardings(array))
    assert grid.title == "[rows, :, columns]"
    assert grid.rows == ((0, 1), (1, 2), (2, 3), (3, 4))
    assert grid.columns == ((0, 1), (1, 2))
    assert grid.devices == (((0,), (1,)), ((2,), (3,)), ((4,), (5,)), ((6,), (7,)))


def test_slices_are_named_and_counted():
    array = place(np.zeros((4, 4, 4), np.float32), MESHES["222"], P("a", "b", "c"))
    (leaf,) = leaf_shardings(array)
    found, _ = grids(leaf)
    assert [grid.title for grid in found] == ["[0:2, rows, columns]", "[2:4, rows, columns]"]
    assert found[1].devices == (((4,), (5,)), ((6,), (7,)))
    assert [len(x) if isinstance(x, list) else x for x in grids(leaf, max_slices=1)] == [1, 1]


def test_split_dimensions_are_drawn_first():
    whole, cut = [(0, 4)], [(0, 2), (2, 4)]
    assert drawn_dimensions([cut, whole, whole, cut]) == (0, 3)
    assert drawn_dimensions([cut, whole, whole]) == (0, 2)
    assert drawn_dimensions([whole, whole, whole]) == (1, 2)
    assert drawn_dimensions([cut, cut, cut]) == (1, 2)
    assert drawn_dimensions([whole]) == (0,)
    assert drawn_dimensions([]) == ()


def test_numbers_are_short():
    assert number_ranges(()) == ""
    assert number_ranges((3,)) == "3"
    assert number_ranges((0, 1)) == "0,1"
    assert number_ranges((0, 1, 2, 3, 6, 8, 9)) == "0-3,6,8,9"


def test_an_array_without_elements_can_be_drawn():
    (leaf,) = leaf_shardings(jax.numpy.zeros((0, 3)))
    assert grids(leaf)[0][0].devices == (((0,),),)
