"""Noise in pieces: the same bits, in place, with temporaries of the size of a piece."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO, EXPLICIT, Decaying, Layout, bits_as_noise, decaying, threefry_key

from bevel.noise_addition import (
    gaussian_noise,
    gaussian_privatizer,
    keys,
    matrix_factorization_privatizer,
    pieces,
)
from bevel.noise_addition.normal import RandomNumbers
from bevel.sharding.shard_generation import Shard


@pytest.mark.parametrize(
    "shape, largest, expected",
    [
        ((1024, 1024), 2**16, (0, 64)),
        ((50257, 768), 2**22, (0, 50257 // 29)),  # 50257 is 29 * 1733
        ((2, 4096, 512), 2**18, (1, 256)),  # the first dimension is too small
        ((3, 2**20), 2**16, (1, 2**14)),
        ((1024,), 2**10, None),  # small enough
        ((1009,), 2**8, None),  # a prime
        ((1024, 64), 2**5, None),  # runs of less than 128 elements
        ((), 1, None),
        ((0, 3), 1, None),
    ],
)
def test_the_split_of_a_shape(shape, largest, expected):
    assert pieces.split_dimension(shape, largest) == expected


@pytest.mark.parametrize("shape", [(96, 40), (7, 360), (5, 6, 7, 128), (3840,)])
@pytest.mark.parametrize("largest", [128, 300, 1000])
def test_pieces_are_equal_and_neither_too_large_nor_too_small(shape, largest):
    found = pieces.split_dimension(shape, largest)
    if found is not None:
        dimension, size = found
        assert shape[dimension] % size == 0
        piece = math.prod(shape) // shape[dimension] * size
        assert largest / 4 <= piece <= largest


KEY_DATA = {"threefry2x32": np.array([7, 9], np.uint32), "chacha20": np.arange(8, dtype=np.uint32)}


@pytest.mark.parametrize("generator", KEY_DATA)
@pytest.mark.parametrize(
    "shape, whole, starts",
    [
        ((16, 64), (32, 64), (16, 0)),
        ((16, 64), (32, 128), (16, 64)),
        ((12, 129), (24, 129), (12, 0)),  # rows that do not fill blocks of ChaCha20
        ((1, 3072), (5, 3072), (3, 0)),
        ((1280,), (3840,), (2560,)),
    ],
)
def test_a_piece_gets_the_bits_that_it_has_in_the_whole(generator, shape, whole, starts):
    shard = Shard(shape, whole, tuple(map(np.uint32, starts)))
    make = RandomNumbers(generator, bits_as_noise, np.dtype(np.float32))
    words = jnp.asarray(KEY_DATA[generator])
    (expected,) = make(words, shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "piece_size", lambda elements: 512)
        assert pieces.split_dimension(shape, 512) is not None
        (drawn,) = pieces.drawn_in_pieces(make, words[None], shard)
        base = jnp.ones(shape)
        rows = jnp.stack([words, words + np.uint32(1)])
        one, two = pieces.added_in_pieces(make, 0.5, rows, shard, (base, base))
    np.testing.assert_array_equal(drawn, expected)
    np.testing.assert_array_equal(one, 1 + expected * np.float32(0.5))
    assert np.mean(one == two) < 0.01


TREE = {"a": np.ones((64, 64), np.float32), "b": np.ones((64, 64), np.float32)}
TREE["v"] = np.ones(2560, np.float32)
SPECS = {"a": P("data", "model"), "b": P("data", "model"), "v": P("data")}
MATRICES = {"independent": None, "dense": decaying(4), "streaming": Decaying}
MESHES = [
    Layout("one", (1, 1), (AUTO,) * 2, SPECS, manual=True),  # leaves are drawn together
    Layout("auto", (2, 2), (AUTO,) * 2, SPECS),
    Layout("explicit", (2, 2), (EXPLICIT,) * 2, SPECS),
    Layout("manual", (2, 2), (AUTO,) * 2, SPECS, manual=True),
    Layout("mixed", (2, 2), (EXPLICIT, AUTO), SPECS),
]


def two_steps(name, generator, **options):
    key = threefry_key(5) if generator == "threefry2x32" else 5
    options |= {"prng_key": key, "specs": SPECS}
    if MATRICES[name] is None:
        privatizer = gaussian_privatizer(**options)
    else:
        privatizer = matrix_factorization_privatizer(MATRICES[name], **options)

    def run(grads):
        state = privatizer.init(grads)
        _, state = privatizer.update(grads, state)
        return privatizer.update(grads, state)[0]

    return run


@pytest.mark.parametrize("layout", MESHES, ids=lambda layout: layout.name)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("generator", KEY_DATA)
def test_pieces_do_not_change_the_noise(name, generator, layout, monkeypatch):
    monkeypatch.setattr(gaussian_noise, "normal_from_bits", bits_as_noise)
    # Different scales, powers of two, because programs are cached by scale.
    whole = jax.jit(two_steps(name, generator, stddev=2.0**-10))(jax.tree.map(np.zeros_like, TREE))
    monkeypatch.setattr(pieces, "piece_size", lambda elements: 256)
    on_mesh = layout.place(jax.tree.map(np.zeros_like, TREE))
    program = layout.compiled(two_steps(name, generator, stddev=2.0**-11), on_mesh)
    assert ("dynamic-update-slice" in program.as_text()) == (layout.name != "mixed")
    for leaf, noise in program(on_mesh).items():
        np.testing.assert_array_equal(2 * noise, whole[leaf])


# Memory, as counted by the compiler.

SEVERAL = {f"up{i}": P("data", "model") for i in range(3)}
SEVERAL |= {f"down{i}": P("model", "data") for i in range(3)} | {"bias": P("model")}
SHAPES = {"up": (256, 1024), "down": (1024, 256), "bias": (1024,), "w": (1024, 1024)}
MODELS = {"several leaves": SEVERAL, "one leaf": {"w": P("data", "model")}}
KINDS = {
    "one device": ((1, 1), AUTO, True),  # as in a process with a single device
    "one of several devices": ((1, 1), AUTO, False),
    "auto": ((4, 2), AUTO, False),
    "explicit": ((4, 2), EXPLICIT, False),
    "manual": ((4, 2), AUTO, True),
}


def noise_memory(model, kind, privatizer):
    """Temporary bytes and bytes that are not aliased, relative to the local gradient."""
    specs = MODELS[model]
    shape, axis_type, manual = KINDS[kind]
    layout = Layout("", shape, (axis_type,) * 2, specs, manual)
    grads = {n: np.ones(SHAPES[n.rstrip("012")], np.float32) for n in specs}
    grads = layout.place(grads)
    update = privatizer(specs)
    if manual:
        state_specs = jax.tree.map(lambda _: P(), update.init(grads))
        run = jax.shard_map(
            lambda g, s: update.update(g, s),
            mesh=layout.mesh,
            in_specs=(specs, state_specs),
            out_specs=(specs, state_specs),
        )
    else:
        run = update.update
    program = jax.jit(run, donate_argnums=(0, 1)).lower(grads, update.init(grads)).compile()
    memory = program.memory_analysis()
    local = 4 * sum(x.addressable_shards[0].data.size for x in grads.values())
    copied = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes / local, copied / local


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("generator", KEY_DATA)
def test_large_leaves_are_noised_in_place(generator, model, kind):
    key = keys.new_key(generator)
    temporary, copied = noise_memory(
        model, kind, lambda specs: gaussian_privatizer(stddev=1.0, prng_key=key, specs=specs)
    )
    assert temporary < 0.5
    assert copied < 0.01  # the sum is written over the gradient
