"""Descriptions as data and as a table, with numbers that can be checked by hand."""

import io
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.console import Console

from bevel.sharding import describe, make_mesh, place

MESH = make_mesh("data=4,model=2")
# 8 x 16 x 4 floats over 8 devices, 16 floats on each, a key and a number.
TREE = {
    "w": np.ones((8, 16, 4), np.float32),
    "b": np.ones(16, np.float32),
    "half": np.ones((4, 2), np.float16),
    "key": jax.random.key(0),
}
RULES = [("w", P("data", None, "model")), ("half", P(None, "model")), ("*", P())]


def test_rows_say_what_each_device_holds():
    found = {row.path: row for row in describe(place(TREE, MESH, RULES)).rows}
    w = found["w"]
    assert (w.shape, w.dtype, w.spec) == ((8, 16, 4), "float32", "P('data', None, 'model')")
    assert (w.shard_shape, w.bytes, w.bytes_per_device) == ((2, 16, 2), 2048, 256)
    assert (w.devices, w.replication) == (8, 1)
    assert (found["b"].bytes_per_device, found["b"].replication) == (64, 8)
    assert (found["half"].bytes_per_device, found["half"].replication) == (8, 4)
    assert (found["key"].bytes, found["key"].shard_shape) == (8, ())


def test_totals_are_those_of_the_shards_that_exist():
    tree = place(TREE, MESH, RULES)
    held = dict.fromkeys(range(8), 0)
    for leaf in (tree["w"], tree["b"], tree["half"], jax.random.key_data(tree["key"])):
        for shard in leaf.addressable_shards:
            held[shard.device.id] += shard.data.nbytes
    found = describe(tree)
    assert found.bytes_by_device == held
    assert found.bytes == 2048 + 64 + 16 + 8
    assert found.most_bytes == 256 + 64 + 8 + 8
    assert math.isclose(found.replication, 8 * 336 / 2136)
    assert found.imbalance == 1


def test_imbalance_is_seen():
    whole = jax.device_put(np.ones(56, np.float32), jax.devices()[3])
    split = place(np.ones(8, np.float32), MESH, P(("data", "model")))
    found = describe([whole, split])
    assert found.rows[0].spec == "device 3"
    assert found.bytes_by_device == dict.fromkeys(range(8), 4) | {3: 228}
    assert math.isclose(found.imbalance, 228 * 8 / 256)


def test_shapes_on_an_abstract_mesh_have_the_same_numbers():
    shapes = jax.eval_shape(lambda: TREE)
    real, abstract = (describe(place(shapes, mesh, RULES)) for mesh in (MESH, MESH.abstract_mesh))
    assert abstract == real == describe(place(TREE, MESH, RULES))


def test_what_is_not_on_a_device_is_counted_apart():
    found = describe({"host": np.ones(4), "shape": jax.ShapeDtypeStruct((2,), np.float32)})
    assert [row.bytes_per_device for row in found.rows] == [None, None]
    assert found.bytes_by_device == {}
    assert (found.imbalance, found.replication, found.most_bytes) == (1, 1, 0)
    assert "2 of them without a known device" in str(found)
    assert describe({}).bytes == 0


def test_the_table_has_every_number():
    text = str(describe(place(TREE, MESH, RULES)))
    (row,) = [line for line in text.splitlines() if line.startswith("w ")]
    for cell in ("8x16x4", "float32", "P('data', None, 'model')", "2x16x2", "256 B"):
        assert cell in row
    assert "4 arrays of 2.09 KiB; 8 devices with at most 336 B" in text
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(describe(place(TREE, MESH, RULES)))
    assert "imbalance 1" in console.export_text()


def test_inside_jit_the_table_comes_when_the_program_is_compiled(capsys):
    shown = []

    @jax.jit
    def step(x):
        known = describe(x * 2, shown.append)
        assert known.rows[0].bytes_per_device is None
        assert known.rows[0].spec == "P(?)"
        describe(x)
        return x

    x = place(TREE["w"], MESH, RULES[0][1])
    step(x)
    step(x)
    assert [d.rows[0].bytes_per_device for d in shown] == [256]
    assert capsys.readouterr().out.count("P('data', None, 'model')") == 1


def test_show_gets_what_is_known_at_once():
    shown = []
    assert describe(jnp.ones(3), shown.append) == shown[0]
    explicit = make_mesh("data=8", axis_types="explicit")
    jax.jit(lambda x: (describe(x, shown.append), x)[1])(place(np.ones(8), explicit, P("data")))
    assert shown[1].rows[0].shard_shape == (1,)
