"""The exercise on manual data parallelism."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.sharding.simulate import shard_map_simulate

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)


@pytest.mark.parametrize("shards", [1.0, 3.0, 12.0])
def test_equals_the_apply_of_one_device(shards):
    from flax import linen as nn

    model = nn.Dense(4)
    params = model.init(jax.random.key(7), X)
    expected = model.apply(params, X)
    found = shard_map_simulate(7.0, X, shards, 4.0)
    assert found.shape == (48,)
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-5, atol=1e-6)
    assert bool(jnp.all(shard_map_simulate(8.0, X, shards, 4.0) != found))


@pytest.mark.parametrize(
    ("x", "shards", "features", "says"),
    [
        (X, 5.0, 4.0, "12 rows, which cannot be split into 5 equal shards"),
        (X[0], 1.0, 4.0, "one row per example"),
        (X[:0], 1.0, 4.0, "0 rows"),
        (X, 0.0, 4.0, "num_shards=0"),
        (X, 2.0, -1.0, "features=-1"),
    ],
)
def test_bad_arguments_are_refused(x, shards, features, says):
    with pytest.raises(FixArgumentsError, match=says):
        shard_map_simulate(0.0, x, shards, features)


def test_without_flax_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(FixArgumentsError, match="pip install flax"):
        shard_map_simulate(0.0, X, 2.0, 4.0)
