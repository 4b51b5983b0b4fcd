"""Arrays made piece by piece: the whole is the same on every mesh, without communication."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import cost
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO, EXPLICIT, GRADIENT, LAYOUTS, WITHOUT_COMMUNICATION

from bevel.errors import FixArgumentsError
from bevel.sharding.shard_generation import Shard, generate_by_shard, leaf_specs

WORDS = np.array([3, 5], np.uint32)


def places(words, piece):
    """The row-major index of every element, and the number of elements of the piece."""
    index = jnp.zeros(piece.shape, np.uint32)
    for d, start in enumerate(piece.starts):
        position = start + jax.lax.broadcasted_iota(np.uint32, piece.shape, d)
        index = index * np.uint32(piece.whole[d]) + position
    size = int(np.prod(piece.shape, dtype=int))
    return index + words[0], jnp.zeros_like(index) + np.uint32(size)


def step(specs, which, tree):
    made = {}
    for name, leaf in tree.items():
        x = generate_by_shard(places, jnp.asarray(WORDS), leaf, specs[name])[which]
        made[name] = x + (leaf > 1).astype(np.uint32)  # adds nothing: leaves are ones
    return made


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_every_element_knows_its_place_in_the_whole(layout):
    tree = layout.place(GRADIENT)
    made = layout.compiled(functools.partial(step, layout.specs, 0), tree)(tree)
    for name, x in made.items():
        expected = 3 + np.arange(x.size).reshape(x.shape)
        np.testing.assert_array_equal(x, expected, err_msg=name)


@pytest.mark.parametrize("layout", WITHOUT_COMMUNICATION, ids=lambda layout: layout.name)
def test_a_shard_makes_its_own_piece_only(layout):
    tree = layout.place(GRADIENT)
    sizes = layout.compiled(functools.partial(step, layout.specs, 1), tree)(tree)
    for name, sharding in layout.shardings().items():
        own = np.prod(sharding.shard_shape(GRADIENT[name].shape), dtype=int)
        if layout.name == "auto-1":
            own = GRADIENT[name].size
        np.testing.assert_array_equal(sizes[name], np.full_like(sizes[name], own), err_msg=name)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_eager_calls_agree(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,))
    like = jax.device_put(np.zeros((8, 3), np.float32), NamedSharding(mesh, P("data")))
    made = generate_by_shard(places, jnp.asarray(WORDS), like)[0]
    np.testing.assert_array_equal(made, 3 + np.arange(24).reshape(8, 3))


def test_pieces_that_do_not_divide_the_whole():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))

    def uneven(x):
        x = jax.lax.with_sharding_constraint(x[:12], NamedSharding(mesh, P("data")))
        return x + generate_by_shard(places, jnp.asarray(WORDS), x)[0].astype(np.float32)

    x = jax.device_put(np.zeros(16, np.float32), NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(jax.jit(uneven)(x), 3 + np.arange(12))


def test_axes_that_are_cut_to_parts_of_themselves():
    # Eight places along one axis become 2 x 4 places along two dimensions.
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))

    def reshaped(x):
        x = x.reshape(2, 32)
        return (x + generate_by_shard(places, jnp.asarray(WORDS), x)[0].astype(np.float32)).ravel()

    x = jax.device_put(np.zeros(64, np.float32), NamedSharding(mesh, P("data")))
    np.testing.assert_array_equal(jax.jit(reshaped)(x), 3 + np.arange(64))


def test_inside_loops():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))

    def add(_, x):
        return x + generate_by_shard(places, jnp.asarray(WORDS), x)[0].astype(np.float32)

    x = jax.device_put(np.zeros(16, np.float32), NamedSharding(mesh, P("data")))
    looped = lambda x: jax.lax.fori_loop(0, 3, add, x)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(looped)(x), 3 * (3 + np.arange(16)))
    found = cost(looped, x)
    assert not any(found[kind] for kind in ("all-gather", "all-reduce", "collective-permute"))


def test_words_that_come_in_pieces_are_put_together():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AUTO,))
    words, x = (jax.device_put(v, NamedSharding(mesh, P("data"))) for v in (WORDS, np.zeros(16)))
    made = jax.jit(lambda w, x: generate_by_shard(places, w, x)[0] + (x > 1).astype(np.uint32))
    np.testing.assert_array_equal(made(words, x), 3 + np.arange(16))


def test_some_axes_manual_and_the_rest_auto():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO,) * 2)
    like = jax.device_put(np.zeros((8, 16), np.float32), NamedSharding(mesh, P("data", "model")))
    shards = jax.shard_map(
        lambda x: generate_by_shard(places, jnp.asarray(WORDS), x, P("data", "model"))[0],
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    np.testing.assert_array_equal(jax.jit(shards)(like), 3 + np.arange(128).reshape(8, 16))


def test_manual_and_explicit_axes_at_once_are_refused():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(EXPLICIT,) * 2)
    like = jax.device_put(np.zeros((8, 16), np.float32), NamedSharding(mesh, P("data", "model")))
    shards = jax.shard_map(
        lambda x: generate_by_shard(places, jnp.asarray(WORDS), x, P("data"))[0],
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    with pytest.raises(FixArgumentsError, match=r"manual axes .* and over Explicit axes.*all of"):
        jax.jit(shards)(like)


def test_the_whole_is_a_piece_of_itself():
    assert Shard.all_of((2, 3)) == Shard((2, 3), (2, 3), (np.uint32(0), np.uint32(0)))


def test_one_spec_stands_for_a_subtree():
    tree = {"a": [1.0, 2.0], "b": 3.0}
    assert leaf_specs(None, tree) == [None] * 3
    assert leaf_specs(P("data"), tree) == [P("data")] * 3
    assert leaf_specs({"a": P("x"), "b": None}, tree) == [P("x"), P("x"), None]


@pytest.mark.parametrize("specs", [{"a": P()}, {"a": P(), "b": "data"}, [P(), P()]])
def test_specs_that_do_not_fit_the_tree(specs):
    with pytest.raises(FixArgumentsError, match="specs"):
        leaf_specs(specs, {"a": [1.0, 2.0], "b": 3.0})
