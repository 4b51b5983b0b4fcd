"""Rows of leaves of different shapes, and what noise for many shapes costs."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO, EXPLICIT, Decaying, Layout

from bevel.noise_addition import gaussian_privatizer, keys, matrix_factorization_privatizer
from bevel.noise_addition.flat_view import FlatView
from bevel.noise_addition.offsets import flat_offsets
from bevel.sharding.shard_generation import Shard


def shard(shape, full=None, starts=None):
    starts = (0,) * len(shape) if starts is None else starts
    return Shard(shape, full or shape, tuple(map(np.uint32, starts)))


SHARDS = {
    "whole": [shard((5, 7)), shard(()), shard((3,)), shard((0, 4)), shard((2, 3, 4))],
    "one": [shard((33,))],
    "last is empty": [shard((9,)), shard((0,))],
    "split rows": [shard((4, 6), (8, 6), (4, 0)), shard((5,), (15,), (10,))],
    "split columns": [shard((6, 4), (6, 12), (0, 8)), shard((6, 16), (6, 32), (0, 16))],
    "odd columns": [shard((6, 5), (6, 15), (0, 10)), shard((3, 7), (9, 21), (6, 14))],
    "three dimensions": [
        shard((2, 3, 5), (4, 3, 10), (2, 0, 5)),
        shard((2, 3, 5), (2, 6, 10), (0, 3, 0)),
        shard((1, 3, 4), (4, 6, 8), (3, 3, 4)),
    ],
    "many": [shard((n % 5 + 1, n)) for n in range(1, 60)],
}


@pytest.mark.parametrize(
    "width, aligned, chunk", [(8, True, 24), (8, True, 2**20), (1, False, 20), (16, False, 48)]
)
@pytest.mark.parametrize("name", SHARDS)
def test_every_element_gets_its_leaf_and_its_offset(name, width, aligned, chunk, monkeypatch):
    monkeypatch.setattr("bevel.noise_addition.flat_view.chunk_size", lambda elements: chunk)
    view = FlatView(tuple(SHARDS[name]), width, aligned)

    def draw(index):
        leaf, offset = view.locate(index)
        offsets = offset[:, None] + jnp.arange(width, dtype=np.uint32)[None]
        return (leaf[:, None] * np.uint32(10**6) + offsets).reshape(-1)

    flat = view.filled(draw)
    for number, one in enumerate(view.shards):
        expected = number * 10**6 + flat_offsets(one)[1]
        np.testing.assert_array_equal(view.leaf(flat, number), expected)


def test_views_have_more_elements_than_32_bits_can_number():
    view = FlatView((shard((2**31, 1)), shard((2**32,)), shard((3,))), 128)
    program = jax.make_jaxpr(lambda: view.filled(lambda i: jnp.zeros(len(i) * 128, np.int8)))()
    (loop,) = (e for e in program.eqns if e.primitive.name == "scan")
    updates = [e for e in loop.params["jaxpr"].eqns if "dynamic_update" in e.primitive.name]
    assert updates and all(max(e.outvars[0].aval.shape) < 2**32 for e in updates)
    with pytest.raises(OverflowError):
        jax.eval_shape(FlatView((shard((2**32,)),) * 2, 1).locate, np.zeros(1, np.uint32))


def test_little_is_padding():
    view = FlatView((shard((64, 512), (256, 1024), (64, 512)), shard((100, 72))), 8, True)
    elements = sum(math.prod(one.shape) for one in view.shards)
    assert view.num_rows * view.width < 1.02 * elements


# The cost of many shapes, as counted by JAX and the compiler.

SPECS = {"replicated": P(), "split": P("data", "model")}
KINDS = {
    "one device": Layout("", (1, 1), (AUTO,) * 2, {}),
    "data": Layout("", (8, 1), (AUTO,) * 2, {}),
    "auto": Layout("", (4, 2), (AUTO,) * 2, {}),
    "explicit": Layout("", (4, 2), (EXPLICIT,) * 2, {}),
}


def shapes(count, size=2**17):
    """Shapes that are all different, and together have `size` elements."""
    rows = [8 * (3 + n) for n in range(count)]
    return {f"w{n}": (r, max(size // count // r // 16, 1) * 16) for n, r in enumerate(rows)}


def program_of(kind, count, generator="chacha20", matrix=None):
    spec = P() if kind in ("one device", "data") else SPECS["split"]
    layout = KINDS[kind]
    grads = {name: np.ones(shape, np.float32) for name, shape in shapes(count).items()}
    grads = Layout("", layout.mesh_shape, layout.kinds, dict.fromkeys(grads, spec)).place(grads)
    key = keys.new_key(generator)
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)
    if matrix is not None:
        privatizer = matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=key)
    state = privatizer.init(grads)
    local = sum(x.addressable_shards[0].data.nbytes for x in grads.values())
    lowered = jax.jit(privatizer.update, donate_argnums=(0, 1)).lower(grads, state)
    return lowered.compile(), local


@pytest.mark.parametrize("kind", KINDS)
def test_one_loop_draws_leaves_of_all_shapes(kind):
    """Loops are what takes long to compile: threefry has one for the chunks of all leaves."""

    def loops(count):
        text = program_of(kind, count, "threefry2x32")[0].as_text()
        return len(re.findall(r" while\(", text)), text.count("\n")

    few, many = loops(4), loops(24)
    assert few[0] == many[0]
    assert many[1] - few[1] < 20 * (60 if kind in ("auto", "explicit") else 25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generator", ["threefry2x32", "chacha20"])
def test_temporaries_are_at_most_one_and_a_half_gradients(generator, kind):
    program, local = program_of(kind, 12, generator)
    assert program.memory_analysis().temp_size_in_bytes < 1.5 * local


@pytest.mark.parametrize("kind", ["one device", "auto"])
def test_temporaries_of_correlated_noise_are_at_most_one_and_a_half_gradients(kind):
    program, local = program_of(kind, 12, "threefry2x32", Decaying)
    assert program.memory_analysis().temp_size_in_bytes < 1.5 * local
