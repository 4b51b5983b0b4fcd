"""Keys come from the operating system, have full width, and are never shared or shown."""

import gc
import os

import jax
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.noise_addition import gaussian_privatizer, keys


def data(key):
    return np.asarray(jax.random.key_data(key))


def test_a_new_key_is_entropy_of_the_operating_system(monkeypatch):
    asked = []

    def urandom(size):
        asked.append(size)
        return bytes(range(size))

    monkeypatch.setattr(os, "urandom", urandom)
    assert data(keys.new_key()).tobytes() == bytes(range(32))
    assert data(keys.new_key("threefry2x32")).tobytes() == bytes(range(8))
    assert asked == [32, 8]


def test_new_keys_do_not_depend_on_numpys_state():
    found = set()
    for _ in range(4):
        np.random.seed(0)
        found.add(data(keys.new_key()).tobytes())
    assert len(found) == 4


def test_no_key_given_draws_a_secret_one():
    noise = keys.noise_key(None)
    assert noise.secret and noise.generator == "chacha20"
    assert jax.random.key_impl(noise.key) == keys.CHACHA20


@pytest.mark.parametrize("seed", [0, 5, np.int64(5), 5 + 2**32, 2**64 - 1])
def test_an_integer_is_a_seed_that_is_recorded_as_not_secret(seed):
    noise = keys.noise_key(seed)
    assert not noise.secret
    assert int(data(noise.key)[0]) + (int(data(noise.key)[1]) << 32) == seed
    assert not np.any(data(noise.key)[2:])


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_have_64_bits(seed):
    with pytest.raises(FixArgumentsError, match="seed from 0 to"):
        keys.noise_key(seed)


def test_typed_keys_keep_their_generator():
    assert keys.noise_key(keys.new_key("threefry2x32")).generator == "threefry2x32"
    assert keys.noise_key(keys.new_key()).generator == "chacha20"


@pytest.mark.parametrize(
    "key, message",
    [
        (jax.random.key_data(jax.random.key(0)), r"legacy key.*jax.random.wrap_key_data"),
        (np.zeros(2, np.uint32), r"legacy key.*jax.random.wrap_key_data"),
        (True, "is bool of dtype None, not a typed key"),
        (0.5, "is float of dtype None, not a typed key"),
        ("secret", "is str of dtype None"),
        (jax.random.split(jax.random.key(0), 2), r"shape \(2,\): pass a single key"),
        (jax.random.key(0, impl="rbg"), "'rbg', which cannot draw the numbers of one shard"),
    ],
)
def test_other_values_than_one_typed_key_are_refused(key, message):
    with pytest.raises(FixArgumentsError, match=message):
        keys.noise_key(key)


def test_unknown_generators_are_refused():
    with pytest.raises(FixArgumentsError, match="write 'chacha20' or 'threefry2x32'"):
        keys.new_key("rc4")


G = np.zeros(3, np.float32)


def made_and_used(key):
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)
    return privatizer, privatizer.update(G, privatizer.init(G))[0]


def test_a_key_is_used_by_one_privatizer():
    key = keys.new_key()
    first, _ = made_and_used(key)
    with pytest.raises(FixArgumentsError, match=r"^pass prng_key=.*keys.new_key.*keys.release"):
        made_and_used(key)
    made_and_used(jax.random.fold_in(key, 1))
    first.update(G, first.init(G))
    assert first.record.key_is_secret


def test_a_privatizer_that_drew_no_noise_does_not_use_its_key():
    key = keys.new_key()
    unused, second = (gaussian_privatizer(stddev=1.0, prng_key=key) for _ in range(2))
    second.update(G, second.init(G))
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        unused.update(G, unused.init(G))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_key_of_a_privatizer_that_is_gone_may_be_used_again_with_a_warning(compiled):
    key, results = keys.new_key(), []

    def cell():
        privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)
        update = jax.jit(privatizer.update) if compiled else privatizer.update
        results.append(update(G, privatizer.init(G))[0])

    cell()
    gc.collect()
    with pytest.warns(UserWarning, match=r"^Pass a new key.*no longer exists has drawn noise"):
        cell()
    np.testing.assert_array_equal(*results)


def test_a_compiled_update_uses_its_key():
    key = keys.new_key()
    first, second = (gaussian_privatizer(stddev=1.0, prng_key=key) for _ in range(2))
    jax.jit(first.update)(G, first.init(G))
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        jax.jit(second.update)(G, second.init(G))


@pytest.mark.parametrize("generator", keys.WORDS)
def test_the_key_of_a_small_seed_warns_is_not_secret_and_may_be_used_again(generator):
    key = keys.seed_key(5001) if generator == "chacha20" else jax.random.key(5001)
    kept = []
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"^For real data, leave prng_key out.*small seed"):
            kept.append(made_and_used(key))
        assert not kept[-1][0].record.key_is_secret
    np.testing.assert_array_equal(kept[0][1], kept[1][1])
    with pytest.warns(UserWarning, match="small seed"):
        secret, _ = made_and_used(keys.new_key(generator))
        secret.update(G, secret.init(G), prng_key=key)
    assert keys.noise_key(keys.wrapped(np.uint32([1, 0]), "threefry2x32")).secret
    assert jax.eval_shape(lambda key: np.bool_(keys.noise_key(key).secret), key).shape == ()


def test_a_key_that_is_passed_to_update_is_checked_too():
    key, g = keys.new_key("threefry2x32"), G
    first, second = (
        gaussian_privatizer(stddev=1.0, prng_key=keys.new_key("threefry2x32")) for _ in range(2)
    )
    for _ in range(2):
        first.update(g, first.init(g), prng_key=key)
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        second.update(g, second.init(g), prng_key=key)
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        made_and_used(key)


def test_the_same_words_are_the_same_key():
    key = keys.new_key()
    first = made_and_used(key)
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        made_and_used(keys.wrapped(data(key), "chacha20"))
    assert first


def test_a_refused_privatizer_does_not_use_up_its_key():
    key = keys.new_key()
    with pytest.raises(FixArgumentsError, match="stddev"):
        gaussian_privatizer(stddev=-1.0, prng_key=key)
    made_and_used(key)


def test_a_released_key_can_be_used_once_more():
    key = keys.new_key()
    kept = [made_and_used(key)]
    keys.release(key)
    kept.append(made_and_used(key))
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        made_and_used(key)
    with pytest.raises(FixArgumentsError, match="not a typed key"):
        keys.release(3)


def test_seeds_for_tests_may_be_used_again():
    for _ in range(2):
        assert not gaussian_privatizer(stddev=1.0, prng_key=3).record.key_is_secret


def test_traced_keys_are_not_checked():
    @jax.jit
    def noised(key, g):
        privatizer = gaussian_privatizer(stddev=1.0, prng_key=key)
        return privatizer.update(g, privatizer.init(g))[0]

    key, g = jax.random.key(1), G
    np.testing.assert_array_equal(noised(key, g), noised(key, g))


def test_keys_are_not_shown():
    key = keys.noise_key(jax.random.wrap_key_data(np.array([123456, 654321], np.uint32)))
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=key.key)
    shown = repr(key) + repr(privatizer.record) + repr(privatizer.init(np.zeros(3, np.float32)))
    assert "123456" not in shown and "654321" not in shown
    assert np.uint32([123456, 654321]).tobytes() not in b"".join(keys._claimed)
