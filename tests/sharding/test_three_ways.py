"""Automatic, with constraints, manual: one private step, and the same parameters after five."""

import functools

import jax
import numpy as np
import pytest
from compare import assert_close, cover
from three_ways import NETWORKS, WAYS, after_oracle_steps, after_steps

# Meshes of (1,), (8,), (4, 2) and (2, 2, 2), each in every way and for every network.
CASES = [
    pytest.param(name, NETWORKS[name].layouts[i], way, id=f"{name}-{i}-{way}")
    for i, way, name in cover(range(4), WAYS, NETWORKS)
]
ROUNDING = 2e-6

expected = functools.cache(lambda name: after_oracle_steps(NETWORKS[name]))


@pytest.mark.parametrize(("name", "layout", "way"), CASES)
def test_every_way_gives_the_parameters_of_one_device(name, layout, way):
    params, started = after_steps(NETWORKS[name], layout, way)
    assert_close(jax.tree.map(np.asarray, params), expected(name), ROUNDING)
    # A parameter that moves between steps would be moved back in the next.
    for p, sharding in zip(jax.tree.leaves(params), jax.tree.leaves(started), strict=True):
        assert p.sharding.is_equivalent_to(sharding, p.ndim)


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_move_the_parameters_by_more_than_rounding(name):
    before, after = jax.tree.leaves(NETWORKS[name].init()[0]), jax.tree.leaves(expected(name))
    moved = max(np.max(np.abs(a - b)) for a, b in zip(before, after, strict=True))
    assert moved > 1000 * ROUNDING
