"""Shardings of leaves: from arrays, from types and from the compiler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.errors import FixArgumentsError
from bevel.inspection.leaf_shardings import COMPILER_DECIDES, abstract_indices, leaf_shardings
from bevel.sharding import make_mesh, place

MESH = make_mesh("data=4,model=2")
X = place(np.ones((8, 16), np.float32), MESH, P("data", "model"))


def specs(found):
    return [(row.shape, row.sharding.spec) for row in found]


def seen_by(program, *args):
    """What the compiler reports of the value that `program(look, *args)` looks at."""
    reports = []
    jax.jit(lambda *args: program(lambda x: leaf_shardings(x, reports.append), *args))(*args)
    return reports


def test_shardings_of_arrays_and_shapes_are_read():
    struct = jax.ShapeDtypeStruct((8,), np.int8, sharding=NamedSharding(MESH, P("data")))
    found = leaf_shardings({"a": X, "s": struct})
    assert [row.path for row in found] == ["a", "s"]
    assert specs(found) == [((8, 16), P("data", "model")), ((8,), P("data"))]
    assert [row.shard_shape for row in found] == [(2, 8), (2,)]
    assert found[0].bytes_by_device() == dict.fromkeys(range(8), 64)


def test_what_lies_nowhere_is_said():
    found = leaf_shardings([np.ones(3), 2.0, jax.ShapeDtypeStruct((3,), np.float32)])
    assert [row.note for row in found] == ["on the host", "on the host", "no sharding"]
    assert found[0].indices() == {}
    with pytest.raises(FixArgumentsError, match="name is a str, not an array"):
        leaf_shardings({"name": "w"})


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P(None, "data"), P(("model", "data")), P("model")]
)
@pytest.mark.parametrize("shape", [(8, 12), (16, 4)])
def test_a_mesh_without_devices_is_cut_as_one_with_them(spec, shape):
    real = NamedSharding(MESH, spec).devices_indices_map(shape)
    expected = {
        d.id: [range(n)[part] for part, n in zip(i, shape, strict=True)] for d, i in real.items()
    }
    found = abstract_indices(NamedSharding(MESH.abstract_mesh, spec), shape)
    assert {
        d: [range(n)[part] for part, n in zip(i, shape, strict=True)] for d, i in found.items()
    } == expected


def test_types_say_it_on_explicit_axes():
    mesh = make_mesh("data=4,model=2", axis_types="explicit")
    found = []
    jax.jit(lambda x: found.extend(leaf_shardings(x * 2)))(place(np.ones((8, 16)), mesh, P("data")))
    assert specs(found) == [((8, 16), P("data", None))]


def test_the_compiler_says_it_on_auto_axes():
    at_once = []

    def program(look, x):
        at_once.extend(look({"x": x, "sum": x.sum(axis=0)}))
        return x + 1

    (report,) = seen_by(program, X)
    assert [row.note for row in at_once] == [COMPILER_DECIDES] * 2
    assert specs(report) == [((16,), P("model")), ((8, 16), P("data", "model"))]
    assert [row.path for row in report] == ["sum", "x"]


BATCHED = "batched by vmap, 1 in front"


def square(look):
    def f(x):
        look(x)
        return jnp.sum(x**2)

    return f


@pytest.mark.parametrize(
    ("program", "shape", "spec", "note"),
    [
        (lambda look, x: jax.grad(square(look))(x), (8, 16), P("data", "model"), ""),
        (lambda look, x: jax.vmap(square(look))(x), (8, 16), P("data", "model"), BATCHED),
        (
            lambda look, x: jax.vmap(square(look), in_axes=1)(x),
            (16, 8),
            P("model", "data"),
            BATCHED,
        ),
        (lambda look, x: jax.vmap(jax.grad(square(look)))(x), (8, 16), P("data", "model"), BATCHED),
        (
            lambda look, x: jax.grad(jax.checkpoint(square(look)))(x),
            (8, 16),
            P("data", "model"),
            "",
        ),
        (
            lambda look, x: jax.lax.scan(lambda c, _: (c, square(look)(c)), x, length=2),
            (8, 16),
            P("data", "model"),
            "",
        ),
    ],
    ids=["grad", "vmap", "vmap of columns", "vmap of grad", "remat", "scan"],
)
def test_what_is_reported_is_the_array_that_the_compiler_has(program, shape, spec, note):
    reports = seen_by(program, X)
    assert reports
    for (row,) in reports:
        assert (row.shape, row.sharding.spec) == (shape, spec)
        assert row.note == note


def test_a_clipped_loss_shows_the_batch_in_front():
    w = place(np.ones((16, 4), np.float32), MESH, P(None, "model"))
    reports = []

    def loss(w, x):
        h = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("data", "model")))
        leaf_shardings({"h": h, "w": w}, reports.append)
        return jnp.mean(h**2)

    bevel.clipped_grad(loss, l2_clip_norm=1.0)(w, place(X, MESH, P("data")))
    assert reports
    for h, weight in reports:
        assert (h.shape, h.sharding.spec) == ((8, 1, 4), P("data", None, "model"))
        assert h.note == BATCHED
        assert (weight.shape, weight.sharding.spec, weight.note) == ((16, 4), P(None, "model"), "")


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map_a_value_is_one_shard(check):
    found = []

    def f(x, w):
        found.extend(leaf_shardings([x, w]))
        return x

    in_specs = (P("data"), P())
    jax.shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=P("data"), check_vma=check)(X, X)
    assert [row.shape for row in found] == [(2, 16), (8, 16)]
    if check:
        assert [row.note for row in found] == [
            "one shard, differs over data",
            "the same on every shard",
        ]
        assert [row.copies for row in found] == [2, 8]
    else:
        assert found[0].note == "one shard over data, model"
