"""The noise state of a privatizer, and the key of an update."""

import jax
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.noise_addition import NoiseState, gaussian_privatizer, keys

G = {"w": np.zeros((4, 8), np.float32)}


def test_the_state_is_a_tree_of_arrays_without_the_key():
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=5)
    state = privatizer.init(G)
    assert isinstance(state, NoiseState)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(state)] == [((), np.uint32)]
    _, state = privatizer.update(G, state)
    assert int(state.step) == 1


def test_a_state_of_another_kind_is_refused():
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=5)
    for wrong in (None, (), {"step": 0}):
        with pytest.raises(FixArgumentsError, match=r"noise_state is a .*NoiseState"):
            privatizer.update(G, wrong)
    for step in (3, np.int32(3), np.float32(3), np.zeros(2, np.uint32)):
        with pytest.raises(FixArgumentsError, match=r"step is .*\], not a uint32 scalar"):
            privatizer.update(G, NoiseState(step))


@pytest.mark.parametrize("impl", [keys.CHACHA20, "threefry2x32"])
def test_a_key_passed_to_update_replaces_the_privatizers_own(impl):
    own, other = (jax.random.fold_in(jax.random.key(n, impl=impl), 0) for n in (101, 102))
    ours = gaussian_privatizer(stddev=1.0, prng_key=own)
    theirs = gaussian_privatizer(stddev=1.0, prng_key=other)
    state = ours.init(G)
    expected = theirs.update(G, state)[0]["w"]
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        ours.update(G, state, prng_key=other)
    keys.release(other)
    np.testing.assert_array_equal(ours.update(G, state, prng_key=other)[0]["w"], expected)
    assert not np.any(ours.update(G, state)[0]["w"] == expected)
    for key in (own, other):
        keys.release(key)


def test_a_key_of_another_generator_is_refused():
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=5)
    with pytest.raises(FixArgumentsError, match=r"threefry2x32 key, but .* draws from chacha20"):
        privatizer.update(G, privatizer.init(G), prng_key=jax.random.key(0))


def test_a_key_that_is_an_argument_is_not_part_of_the_program():
    words = np.array([123456789, 987654321], np.uint32)
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=keys.new_key("threefry2x32"))

    def step(key, g, state):
        return privatizer.update(g, state, prng_key=key)

    key = jax.random.wrap_key_data(words)
    text = jax.jit(step).lower(key, G, privatizer.init(G)).compile().as_text()
    assert "123456789" not in text and "987654321" not in text
