"""Padding: no example is lost or added, and every batch has a padded size."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel import clipped_grad
from bevel.batch_selection import (
    PaddedSizes,
    pad_to_multiple_of,
    padded_sizes,
    split_and_pad_global_batch,
)
from bevel.batch_selection.padding import filling_order, pad_to_size, rows_at
from bevel.errors import FixArgumentsError


@given(st.integers(0, 30), st.integers(1, 12))
def test_padding_to_a_multiple(size, multiple):
    indices = np.arange(size)
    padded = pad_to_multiple_of(indices, multiple)
    assert len(padded) % multiple == 0 and size <= len(padded) < size + multiple
    assert padded[:size].tolist() == list(range(size)) and (padded[size:] == -1).all()
    assert padded.dtype == indices.dtype


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 4))
def test_padding_fills_the_last_microbatches(size, microbatch, pieces):
    padded = pad_to_multiple_of(np.arange(size), microbatch * pieces, microbatch)
    assert sorted(padded[padded >= 0].tolist()) == list(range(size))
    split = padded.reshape(microbatch, -1).T  # as clipping splits a batch
    real = (split >= 0).sum(axis=1)
    assert np.all(np.diff(real) <= 0)
    assert ((real > 0) & (real < microbatch)).sum() <= 1


def test_clipping_skips_the_microbatches_of_padding():
    rows = pad_to_multiple_of(np.arange(3), 8, microbatch_size=2)
    data = np.arange(3.0)[np.maximum(rows, 0)].astype(np.float32)[:, None]
    fn = clipped_grad(
        lambda w, x: jnp.sum(x * w), l2_clip_norm=1e6, microbatch_size=2, return_grad_norms=True
    )
    total, aux = fn(jnp.ones((1, 1)), data, is_padding_example=rows == -1)
    assert float(total[0, 0]) == pytest.approx(3.0, rel=1e-3)
    assert np.flatnonzero(aux.grad_norms).tolist() == np.flatnonzero(rows > 0).tolist()


@given(st.integers(0, 30), st.integers(1, 9))
def test_minibatches_hold_the_batch(size, minibatch):
    pieces = split_and_pad_global_batch(np.arange(size), minibatch)
    assert {len(piece) for piece in pieces} == {minibatch}
    assert len(pieces) == max(1, -(-size // minibatch))
    flat = np.concatenate(pieces)
    assert flat[flat >= 0].tolist() == list(range(size))
    assert (np.concatenate([np.empty(0, int), *pieces[:-1]]) >= 0).all()


def test_minibatches_with_microbatches():
    (piece,) = split_and_pad_global_batch(np.arange(3), 6, microbatch_size=2)
    assert piece.tolist() == [0, 2, -1, 1, -1, -1]


def test_batches_of_users_are_padded_by_rows():
    users = np.array([[1, 2], [3, -1], [4, 5]])
    assert pad_to_multiple_of(users, 4).tolist() == [[1, 2], [3, -1], [4, 5], [-1, -1]]
    assert [p.shape for p in split_and_pad_global_batch(users, 2)] == [(2, 2)] * 2


def test_an_empty_batch_stays_empty_or_is_all_padding():
    assert pad_to_multiple_of(np.array([]), 4).shape == (0,)
    assert pad_to_multiple_of(np.zeros((0, 3), int), 4, microbatch_size=2).shape == (0, 3)
    assert PaddedSizes((4,)).pad(np.array([])).tolist() == [-1] * 4
    assert [p.tolist() for p in split_and_pad_global_batch(np.array([], int), 3)] == [[-1] * 3]


@given(st.floats(0, 1e6), st.integers(1, 64), st.integers(1, 6), st.lists(st.integers(0, 10**7)))
def test_every_batch_has_a_padded_size(expected, multiple, count, sizes):
    padding = padded_sizes(expected, multiple=multiple, count=count)
    assert 1 <= len(padding.sizes) <= count
    assert all(a < b for a, b in itertools.pairwise(padding.sizes))
    assert padding.sizes[-1] >= expected + 5.99 * np.sqrt(expected)
    for size in sizes:
        padded = padding.size_for(size)
        assert padded >= size and padded % multiple == 0
        if size > padding.sizes[-1]:  # a few more sizes, not one per batch
            assert padded <= size * 1.126 + multiple


def test_few_sizes_and_little_waste():
    padding = padded_sizes(1024, multiple=8)
    rng = np.random.default_rng(0)
    sizes = rng.binomial(60_000, 1024 / 60_000, 20_000)
    padded = np.array([padding.size_for(s) for s in sizes])
    assert len(set(padded.tolist())) <= 3
    assert padded.mean() < 1.08 * sizes.mean()
    assert padded_sizes(256, multiple=8, spread=0).sizes == (256,)


def test_padding_by_sizes():
    padding = PaddedSizes((4, 8), multiple=4)
    assert len(padding.pad(np.arange(3))) == 4 and len(padding.pad(np.arange(5))) == 8
    assert len(padding.pad(np.arange(9))) == 12
    rows = padding.pad(np.arange(5), microbatch_size=2)
    assert rows.reshape(2, 4).T[:, 0].tolist() == [0, 2, 4, -1]


def test_wrong_input():
    with pytest.raises(FixArgumentsError, match="next padded size"):
        pad_to_size(np.arange(5), 4)
    with pytest.raises(FixArgumentsError, match="not a multiple of microbatch_size=3"):
        filling_order(8, 3)
    with pytest.raises(FixArgumentsError, match="multiple=0"):
        pad_to_multiple_of(np.arange(3), 0)
    with pytest.raises(FixArgumentsError, match="minibatch_size=0"):
        split_and_pad_global_batch(np.arange(3), 0)
    for wrong in (np.array([1.5]), np.array([1], np.uint32), np.array(3)):
        with pytest.raises(FixArgumentsError, match="signed integers"):
            pad_to_multiple_of(wrong, 2)
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(FixArgumentsError, match="expected_batch_size"):
            padded_sizes(wrong)


@pytest.mark.parametrize("microbatch_size", [None, 1, 2, 3, 12])
def test_the_rows_at_places_are_those_that_padding_puts_there(microbatch_size):
    padded = pad_to_size(np.arange(12), 12, microbatch_size)
    for places in (np.arange(12), np.arange(3, 7), np.array([11, 0])):
        assert np.array_equal(rows_at(places, 12, microbatch_size), padded[places])
    with pytest.raises(FixArgumentsError, match="not a multiple of microbatch_size=5"):
        rows_at(np.arange(3), 12, 5)
