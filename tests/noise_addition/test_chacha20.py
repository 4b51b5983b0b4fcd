"""ChaCha20: the vectors of RFC 8439, streams of shards, and child keys that never overlap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import FULL, cost
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO

from bevel.noise_addition import chacha20
from bevel.noise_addition.chacha20 import CHACHA20, BlockPurpose
from bevel.sharding.shard_generation import Shard

KEY = np.frombuffer(bytes(range(32)), "<u4")

# RFC 8439, section 2.3.2 and appendix A.1: (key, words 12 to 15, stream).
VECTORS = [
    (
        bytes(range(32)),
        "01000000 00000009 0000004a 00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        bytes(32),
        "00000000 00000000 00000000 00000000",
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        bytes(32),
        "01000000 00000000 00000000 00000000",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        bytes(31) + b"\x01",
        "01000000 00000000 00000000 00000000",
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        b"\x00\xff" + bytes(30),
        "02000000 00000000 00000000 00000000",
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        bytes(32),
        "00000000 00000000 00000000 00000002",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


def start_words(key, rest):
    return np.frombuffer(b"expand 32-byte k" + key + rest, "<u4")


BLOCK = jax.jit(lambda words: jnp.stack(chacha20.block([words[i] for i in range(16)])))


@pytest.mark.parametrize("key, rest, expected", VECTORS)
def test_block_function_of_rfc_8439(key, rest, expected):
    assert np.asarray(BLOCK(start_words(key, bytes.fromhex(rest)))).tobytes().hex() == expected
    assert one_block(start_words(key, bytes.fromhex(rest))).hex() == expected


def test_the_unrolled_rounds_give_the_same():
    key, rest, expected = VECTORS[0]
    words = start_words(key, bytes.fromhex(rest))[:, None]  # NumPy: nothing to compile
    after = chacha20.unrolled_rounds(list(words))
    assert (words + np.array(after, np.uint32)).astype("<u4").tobytes().hex() == expected


def one_block(words):
    """The block function in Python's integers, written from the RFC."""
    x = [int(w) for w in words]

    def rotate(value, bits):
        return ((value << bits) | (value >> (32 - bits))) % 2**32

    def quarter(a, b, c, d):
        for first, second, third, bits in (
            (a, b, d, 16),
            (c, d, b, 12),
            (a, b, d, 8),
            (c, d, b, 7),
        ):
            x[first] = (x[first] + x[second]) % 2**32
            x[third] = rotate(x[third] ^ x[first], bits)

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12)
    return b"".join(
        ((v + int(w)) % 2**32).to_bytes(4, "little") for v, w in zip(x, words, strict=True)
    )


@functools.cache
def stream_bytes(purpose=BlockPurpose.BITS, blocks=32, word=0):
    """The first blocks of a stream of KEY."""
    rests = (np.array([n, 0, word, purpose], "<u4").tobytes() for n in range(blocks))
    return b"".join(one_block(start_words(KEY.tobytes(), rest)) for rest in rests)


@pytest.mark.parametrize(
    "width, shape",
    [(8, (15, 8)), (16, (3, 5)), (32, (15, 8)), (64, (3, 5)), (64, ()), (8, (0, 3))],
)
def test_bits_are_the_stream_read_in_row_major_order(width, shape):
    size = int(np.prod(shape, dtype=int))
    with jax.enable_x64(True):
        got = jax.random.bits(key(), shape, f"uint{width}")
    expected = np.frombuffer(stream_bytes(), f"<u{width // 8}")[:size].reshape(shape)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "whole, shape, width",
    [
        ((4, 64), (4, 16), 64),  # rows and shards fill blocks
        ((4, 64), (2, 4), 64),  # rows do, shards do not
        ((6, 10), (3, 10), 32),  # shards are runs of whole rows
        ((6, 10), (2, 5), 64),  # every row begins at another lane of its block
        ((3, 4, 6), (1, 2, 6), 64),
        ((42,), (6,), 64),
    ],
)
def test_a_shard_is_a_slice_of_the_stream(whole, shape, width):
    size = int(np.prod(whole))
    expected = np.frombuffer(stream_bytes(), f"<u{width // 8}")[:size].reshape(whole)

    @jax.jit
    def shard(starts):
        return chacha20.stream(jnp.asarray(KEY), Shard(shape, whole, starts), width)

    counts = [n // s for n, s in zip(whole, shape, strict=True)]
    for index in {(0,) * len(whole), tuple(c - 1 for c in counts), tuple(c // 2 for c in counts)}:
        starts = tuple(np.uint32(i * s) for i, s in zip(index, shape, strict=True))
        cut = tuple(slice(int(a), int(a) + s) for a, s in zip(starts, shape, strict=True))
        high, low = (np.asarray(x, np.uint64) for x in (np.uint32([0]), *shard(starts))[-2:])
        np.testing.assert_array_equal((high << np.uint64(32)) | low, expected[cut])


def test_block_numbers_have_64_bits():
    # The last 16 of 2**37 elements.
    starts = (np.uint32(2**17 - 1), np.uint32(2**20 - 16))
    shard = Shard((1, 16), (2**17, 2**20), starts)
    high, low = jax.jit(lambda key: chacha20.stream(key, shard, 64))(KEY)
    number = (2**37 - 16) // 8
    rests = (np.array([n, 0], "<u8").tobytes() for n in (number, number + 1))
    expected = b"".join(one_block(start_words(KEY.tobytes(), rest)) for rest in rests)
    both = np.stack([low[0], high[0]], axis=-1)
    assert both.tobytes() == expected


def key():
    return jax.random.wrap_key_data(jnp.asarray(KEY), impl=CHACHA20)


FOLD = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
NUMBERS = np.arange(40, dtype=np.uint32)


def windows(data):
    """All runs of 8 words, at every byte."""
    return {data[i : i + 32] for i in range(len(data) - 31)}


def test_child_keys_never_occur_in_the_output_of_the_parent():
    groups = [jax.random.split(key(), 40), FOLD(key(), NUMBERS)]
    children = [row.tobytes() for keys in groups for row in np.asarray(jax.random.key_data(keys))]
    assert len(set(children)) == 80
    for purpose, word in (
        (BlockPurpose.BITS, 0),
        (BlockPurpose.DISCRETE, 0),
        (BlockPurpose.DISCRETE, 1),
    ):
        output = KEY.tobytes() + stream_bytes(purpose, word=word)
        assert not windows(output) & set(children)
    # They are the first halves of blocks that are used for keys only.
    for purpose, first in ((BlockPurpose.SPLIT, 0), (BlockPurpose.FOLD_IN, 40)):
        blocks = stream_bytes(purpose)
        assert [blocks[i : i + 32] for i in range(0, 1024, 64)] == children[first : first + 16]


def test_streams_of_related_keys_do_not_overlap():
    child, other = jax.random.split(key(), 2)
    relatives = [key(), child, other, jax.random.fold_in(key(), 0), jax.random.fold_in(child, 0)]
    relatives += list(jax.random.split(child, 2))
    draw = jax.jit(lambda k: jax.random.bits(k, (64,)))
    rows = [set(np.asarray(draw(k)).tolist()) for k in relatives]
    assert sum(len(a & b) for i, a in enumerate(rows) for b in rows[:i]) == 0


def test_purposes_are_distinct():
    assert len({int(p) for p in BlockPurpose}) == len(BlockPurpose)


def test_seeds_of_64_bits_differ():
    with jax.enable_x64(True):
        keys = [jax.random.key(s, impl=CHACHA20) for s in (5, 6, 5 + 2**32)]
        data = {np.asarray(jax.random.key_data(k)).tobytes() for k in keys}
    assert len(data) == 3
    small = jax.random.key_data(jax.random.key(5, impl=CHACHA20))
    assert np.asarray(small).tobytes() in data


def test_vmap_and_jit_agree_with_a_loop():
    keys = jax.random.split(key(), 3)
    draw = lambda k: jax.random.bits(k, (5, 7))  # noqa: E731
    expected = np.stack([draw(k) for k in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw))(keys), expected)
    one = jax.random.key_data(jax.random.fold_in(key(), 2))
    np.testing.assert_array_equal(jax.random.key_data(FOLD(key(), NUMBERS)[2]), one)


def test_jax_random_accepts_the_keys():
    assert jax.random.key_impl(key()) == CHACHA20
    assert jax.random.uniform(key(), (3,)).shape == (3,)
    assert jax.random.split(key(), (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("spec", [P("data", "model"), *([P(None, "data")] if FULL else [])])
def test_bits_are_partitioned_without_communication(spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AUTO,) * 2)
    sharding = NamedSharding(mesh, spec)

    def draw(k):
        bits = jax.random.bits(k, (32, 64))
        return jax.lax.with_sharding_constraint(bits, sharding)

    replicated = jax.device_put(key(), NamedSharding(mesh, P()))
    expected = np.frombuffer(stream_bytes(blocks=128), "<u4").reshape(32, 64)
    np.testing.assert_array_equal(jax.jit(draw)(replicated), expected)
    found = cost(draw, replicated)
    assert not any(found[kind] for kind in found if kind not in ("flops", "memory"))
