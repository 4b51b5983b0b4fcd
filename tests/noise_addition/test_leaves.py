"""Leaves of a gradient: their keys, how they are grouped, and shards without a known offset."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO, Layout, bits_as_noise

import bevel.noise_addition.leaves as leaves_module
from bevel.errors import FixArgumentsError
from bevel.noise_addition.discrete_gaussian import DiscreteGaussians
from bevel.noise_addition.keys import CHACHA20
from bevel.noise_addition.leaves import (
    Group,
    checked_leaves,
    draw_leaves,
    forbid_vmap,
    group_leaves,
    leaf_key_data,
)
from bevel.noise_addition.normal import RandomNumbers


@pytest.mark.parametrize("impl", [CHACHA20, "threefry2x32"])
def test_the_key_of_a_leaf_is_folded_from_step_and_number(impl):
    key = jax.random.key(4, impl=impl)
    words = leaf_key_data(jax.random.fold_in(key, 7), range(3))
    for leaf in range(3):
        expected = jax.random.fold_in(jax.random.fold_in(key, 7), leaf)
        np.testing.assert_array_equal(words[leaf], jax.random.key_data(expected))


# Three leaves of one kind, one of the same shape with another sharding, and one of its own kind.
SPECS = {"a": P("data"), "b": P(), "c": P("data"), "d": P("data"), "w": P(None, "model")}
TREE = {name: np.zeros((16, 64) if name == "w" else (8, 12), np.float32) for name in SPECS}
MAKERS = {
    "threefry2x32": functools.partial(RandomNumbers, "threefry2x32", bits_as_noise),
    "chacha20": functools.partial(RandomNumbers, "chacha20", bits_as_noise),
    "discrete": lambda dtype: DiscreteGaussians(5),
}


def draw(name):
    """A function of TREE that returns the noise of one step."""
    key = jax.random.key(5, impl=CHACHA20 if name != "threefry2x32" else name)

    def run(tree):
        leaves = [tree[leaf] for leaf in sorted(tree)]
        specs = [SPECS[leaf] for leaf in sorted(tree)]
        found = draw_leaves(MAKERS[name], key, np.uint32(3), leaves, specs)
        return dict(zip(sorted(tree), found, strict=True))

    return run


@pytest.mark.parametrize("name", MAKERS)
def test_leaves_that_are_drawn_together_get_what_each_would_get(name):
    with jax.enable_x64(name == "discrete"):
        together = Layout("", (4, 2), (AUTO,) * 2, SPECS, manual=True).compiled(draw(name), TREE)
        one_by_one = jax.jit(draw(name))(TREE)
        for leaf, noise in together(TREE).items():
            np.testing.assert_array_equal(noise, one_by_one[leaf])
        assert not np.array_equal(one_by_one["a"], one_by_one["c"])


def test_leaves_of_all_shapes_are_drawn_together():
    leaves, none = [jnp.zeros((3, n)) for n in range(1, 200)], [None] * 199
    assert group_leaves(leaves, none) == [Group(list(range(199)), False)]
    assert group_leaves([leaves[0]], [None]) == [Group([0], True)]


def test_leaves_that_vary_over_other_axes_or_have_another_dtype_are_drawn_separately():
    leaves, specs = [TREE[n] for n in sorted(TREE)], [SPECS[n] for n in sorted(TREE)]
    leaves[2] = leaves[2].astype(np.float16)
    found = []

    def body(tree):
        found.append(group_leaves(leaves, specs))
        return tree

    mesh = Layout("", (4, 2), (AUTO,) * 2, SPECS).mesh
    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P()), TREE)
    assert [group.leaves for group in found[0]] == [[0, 3], [1], [2], [4]]


def test_shapes_with_much_of_the_gradient_are_noised_in_place(monkeypatch):
    wide, tall, small = jnp.zeros((512, 512)), jnp.zeros((1024, 512)), jnp.zeros(8)
    leaves, none = [wide, small, tall, wide, small], [None] * 5
    # On meshes the compiler may shard leaves of one shape differently.
    separate = [Group([0], True), Group([1, 4], False), Group([2], True), Group([3], True)]
    assert group_leaves(leaves, none) == separate
    monkeypatch.setattr(leaves_module.types, "on_one_device", lambda: True)
    together = [Group([0, 3], True), Group([1, 4], False), Group([2], True)]
    assert group_leaves(leaves, none) == together


def test_groups_are_bounded_where_they_are_drawn_one_after_the_other(monkeypatch):
    monkeypatch.setattr(leaves_module.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(leaves_module, "MOST_ELSEWHERE", 100)
    leaves = [jnp.zeros(40 + n) for n in range(20)]
    groups = group_leaves(leaves, [None] * 20)
    sizes = [sum(leaves[leaf].size for leaf in group.leaves) for group in groups]
    assert max(sizes) <= sum(sizes) / 5 and len(groups) <= 10


def test_names_of_leaves():
    tree = {"a": [np.zeros(2, np.float32)], "b": 1.0}
    leaves = checked_leaves(tree, P("data"), jnp.floating, "")
    assert [leaf.name for leaf in leaves] == ["['a'][0]", "['b']"]
    assert [leaf.spec for leaf in leaves] == [P("data")] * 2


@pytest.mark.parametrize("value", [np.zeros(2, np.int32), np.zeros(2, np.complex64), True])
def test_other_dtypes_are_refused(value):
    with pytest.raises(FixArgumentsError, match=r"\['a'\] has dtype .*: floats only"):
        checked_leaves({"a": value}, None, jnp.floating, "floats only")


def in_shards(specs, in_spec, check_vma=True, axis_names=("data", "model"), reduce=()):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO,) * 2)

    def body(x):
        x = jax.lax.psum(x, reduce) if reduce else x
        checked_leaves({"g": x}, specs, jnp.floating, "")
        return x

    shards = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=in_spec,
        out_specs=P(*(() if reduce else in_spec)),
        check_vma=check_vma,
        axis_names=set(axis_names),
    )
    jax.eval_shape(shards, np.zeros((8, 16), np.float32))


@pytest.mark.parametrize(
    "specs, in_spec, options",
    [
        (P("model"), P("model"), {}),
        ({"g": P(None, ("data", "model"))}, P(None, ("data", "model")), {}),
        (None, P(), {}),  # types say that all shards are the same
        (P(), P(), {}),
        (P(), P("data"), {"reduce": ("data",)}),
        (None, P("data"), {"reduce": ("data",)}),
        (P("model"), P("model"), {"check_vma": False}),
        (P("data", "model"), P("data"), {"axis_names": ("data",)}),
    ],
)
def test_shards_with_a_known_offset_are_accepted(specs, in_spec, options):
    in_shards(specs, in_spec, **options)


@pytest.mark.parametrize(
    "specs, in_spec, options, message",
    [
        (
            None,
            P("data"),
            {},
            r"differs between the shards of \['data'\], and the offset.*specs",
        ),
        (P(), P("data"), {}, r"of \['data'\], but its spec .* splits it over \[\].*reduce_axes"),
        (P("model"), P(("data", "model")), {}, r"splits it over \['model'\]"),
        (P("model"), P(), {}, r"of \[\], but its spec"),
        (
            None,
            P("model"),
            {"check_vma": False},
            "check_vma=False its offset in the gradient is not known: pass specs",
        ),
        (P(None, None, "model"), P(), {}, "at most one entry per dimension"),
        (P("rows"), P(), {}, r"naming axes of the mesh"),
    ],
)
def test_shards_without_a_known_offset_are_refused(specs, in_spec, options, message):
    with pytest.raises(FixArgumentsError, match=message):
        in_shards(specs, in_spec, **options)


@pytest.mark.parametrize("compiled", [False, True])
def test_mapping_over_gradients_is_refused(compiled):
    def mapped(grads):
        return forbid_vmap([grads["a"]])[0]

    mapped = jax.jit(mapped) if compiled else mapped
    with pytest.raises(FixArgumentsError, match=r"same noise to 3 gradients.*separate prng_key="):
        jax.vmap(mapped)({"a": np.zeros((3, 2), np.float32)})
