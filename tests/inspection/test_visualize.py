"""Pictures show the actual shards, in text and in SVG."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding import make_mesh, place, visualize

MESH = make_mesh("a=4,b=2")


def placed(spec, shape=(8, 8)):
    return place(np.zeros(shape, np.float32), MESH, spec)


# The layouts that "Distributed arrays" draws for an array of (8192, 8192).
DOCUMENT = {
    P("a", "b"): [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]],
    P("b", "a"): [["0", "2", "4", "6"], ["1", "3", "5", "7"]],
    P("a", None): [["0,1"], ["2,3"], ["4,5"], ["6,7"]],
    P(None, "b"): [["0,2,4,6", "1,3,5,7"]],
    P(None, "a"): [["0,1", "2,3", "4,5", "6,7"]],
    P(("a", "b"), None): [["0"], ["1"], ["2"], ["3"], ["4"], ["5"], ["6"], ["7"]],
    P(): [["0-7"]],
}


@pytest.mark.parametrize("spec", DOCUMENT, ids=str)
def test_the_layouts_of_the_document(spec):
    lines = str(visualize(placed(spec))).splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]
    assert cells == DOCUMENT[spec]


def test_a_tree_of_any_rank_is_drawn():
    mesh = make_mesh("a=2,b=2,c=2")
    cube = place(np.zeros((2, 4, 3, 4), np.float32), mesh, P("a", "b", None, "c"))
    text = str(visualize({"cube": cube, "vector": placed(P("b"), (4,)), "number": placed(P(), ())}))
    assert text.splitlines() == [
        "cube 2x4x3x4 float32  P('a', 'b', None, 'c') on a=2, b=2, c=2",
        "[0:1, rows, :, columns]",
        "┌─────┬─────┐",
        "│  0  │  1  │",
        "├─────┼─────┤",
        "│  2  │  3  │",
        "└─────┴─────┘",
        "[1:2, rows, :, columns]",
        "┌─────┬─────┐",
        "│  4  │  5  │",
        "├─────┼─────┤",
        "│  6  │  7  │",
        "└─────┴─────┘",
        "number scalar float32  P() on a=4, b=2",
        "┌─────┐",
        "│ 0-7 │",
        "└─────┘",
        "vector 4 float32  P('b') on a=4, b=2",
        "┌─────────┬─────────┐",
        "│ 0,2,4,6 │ 1,3,5,7 │",
        "└─────────┴─────────┘",
    ]


def test_shapes_on_a_mesh_without_devices_are_drawn():
    struct = jax.ShapeDtypeStruct((8, 8), np.float32)
    mesh = MESH.abstract_mesh
    assert str(visualize(place(struct, mesh, P("a", "b")))) == str(visualize(placed(P("a", "b"))))


def test_many_slices_are_counted():
    mesh = jax.sharding.AbstractMesh((32, 2, 2), ("a", "b", "c"))
    drawing = visualize(place(jax.ShapeDtypeStruct((32, 2, 2), np.int8), mesh, P("a", "b", "c")))
    assert len(drawing.pictures[0].slices) == 16
    assert str(drawing).endswith("(16 more slices)")


def test_inside_jit_it_is_drawn_when_compiled(capsys):
    jax.jit(lambda x: (visualize(x + 1), x)[1])(placed(P("a")))
    assert "│ 6,7 │" in capsys.readouterr().out
    shown = []
    visualize(np.ones(2), shown.append)
    assert "on the host" in str(shown[0])
    assert "on the host" in shown[0].svg


def test_it_is_saved_by_the_ending(tmp_path):
    drawing = visualize(placed(P("a")))
    for name, start in (("x.svg", "<svg"), ("x.html", "<!doctype html>"), ("x.txt", "8x8 float32")):
        drawing.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert drawing._repr_html_() in drawing.html
    assert "P(&#x27;a&#x27;)" in drawing.html
    with pytest.raises(FixArgumentsError, match=r"does not end in .svg, .html, .txt"):
        drawing.save(tmp_path / "x.png")
