"""Coefficients follow their formulas, and no contribution exceeds its bound in exact arithmetic."""

import functools
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from bevel.clipping.accumulate.coefficients import coefficients, total_norm, tree_norm, usable
from bevel.clipping.norms import Norm, materialised_norm
from bevel.clipping.options import Clip

CLIP_NORMS = [0.0, 1e-30, 0.1, 1 / 3, 1.0, 1e30, math.inf]
KINDS = {
    "clip": {},
    "rescale": {"rescale_to_unit_norm": True},
    "automatic": {"automatic_gamma": 0.01},
    "automatic, rescaled": {"automatic_gamma": 1e-20, "rescale_to_unit_norm": True},
}


def formula(norm, limit, clip):
    goal = 1.0 if clip.rescale_to_unit_norm else limit
    if clip.automatic_gamma is not None:
        return goal / (norm + clip.automatic_gamma)
    if clip.rescale_to_unit_norm:
        return 1 / max(norm, limit) if max(norm, limit) > 0 else 0.0
    return 1.0 if norm <= limit else limit / norm


def norm_of(values):
    values = jnp.asarray(values, jnp.float32)
    return Norm(values, values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", CLIP_NORMS)
def test_formula(kind, limit):
    clip = Clip.checked(limit, **KINDS[kind])
    norms = np.float32([0.0, 1e-30, 1e-3, 0.5, 2.0, 1e20, 1e30])
    factors = np.asarray(coefficients(norm_of(norms), limit, clip))
    for norm, factor in zip(norms, factors, strict=True):
        truth = min(formula(float(norm), limit, clip), 2.0**120)
        if 0 < truth < 1.2e-38:  # below the normal range, where zero is correct and safe
            assert 0 <= factor <= truth * 1.01
        else:
            np.testing.assert_allclose(factor, truth, rtol=1e-6)


def near_powers_of_two(rng, count):
    """Numbers a few ulps around powers of two, and others, over most of the range."""
    exponents = rng.integers(-60, 60, size=count)
    steps = rng.integers(-3, 4, size=count) * 2.0**-23
    exact = np.ldexp(1.0 + steps, exponents)
    anywhere = np.ldexp(rng.uniform(1, 2, size=count), exponents)
    return np.where(rng.random(count) < 0.5, exact, anywhere).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(1, 2))
def contributions(gradient, limit, clip):
    """The contributions to the sum, for a tree of stacked gradients."""
    leaves = jax.tree.leaves(gradient)
    norm = tree_norm([materialised_norm(g) for g in leaves])
    factor = coefficients(norm, limit, clip)
    return [g * jnp.expand_dims(factor, tuple(range(1, g.ndim))) for g in leaves]


def assert_never_above(gradient, limit, clip, bound):
    rows = [np.asarray(x) for x in contributions(gradient, limit, clip)]
    exact_bound = Fraction(bound) ** 2
    for example in range(len(rows[0])):
        values = [Fraction(float(v)) for x in rows for v in np.ravel(x[example])]
        assert sum(v * v for v in values) <= exact_bound, example
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0.0, 1e-30, 0.1, 1 / 3, 1.0, np.nextafter(1.0, 0), 1e30])
def test_never_above_the_bound_by_exact_arithmetic(kind, limit):
    clip = Clip.checked(limit, **KINDS[kind])
    gradient = near_powers_of_two(np.random.default_rng(0), 1000)[:, None]
    # Around the clip norm, where the coefficient drops below one.
    around = np.float32(limit) * (1 + np.arange(-40, 41) * np.float32(2.0**-24))
    gradient = np.concatenate([gradient, around.astype(np.float32)[:, None]])
    assert_never_above(gradient, limit, clip, 1.0 if clip.rescale_to_unit_norm else limit)


@pytest.mark.parametrize("shapes", [((3,),), ((7,), (2, 2)), ((1,),) * 12, ((333,),)], ids=str)
@pytest.mark.parametrize("limit", [0.1, 1.0])
def test_vectors_and_trees_are_within_the_bound_and_near_it(shapes, limit):
    rng = np.random.default_rng(1)
    gradient = [near_powers_of_two(rng, 60 * math.prod(s)).reshape(60, *s) for s in shapes]
    clip = Clip.checked(limit)
    rows = assert_never_above(gradient, limit, clip, limit)
    clipped = np.sqrt(sum((x.astype(np.float64) ** 2).reshape(60, -1).sum(1) for x in rows))
    before = np.sqrt(sum((g.astype(np.float64) ** 2).reshape(60, -1).sum(1) for g in gradient))
    np.testing.assert_array_less(0.995 * np.minimum(before, limit), clipped)


@pytest.mark.parametrize("limit", [0.1, 1.0])
def test_float64(limit):
    with jax.enable_x64(True):
        gradient = np.random.default_rng(2).normal(size=(200, 3)) * 2.0 ** np.arange(200)[:, None]
        assert_never_above(gradient, limit, Clip.checked(limit), limit)


@pytest.mark.parametrize(
    "norms, truth",
    [
        ([3e30, 4e30], 5e30),
        ([3e-30, 4e-30], 5e-30),
        ([1e30, 1e-30], 1e30),
        ([2.0**-126, 0.0], 2.0**-126),
        ([0.0, 0.0], 0.0),
        ([3e38, 3e38], math.inf),
        ([math.inf, 1.0], math.inf),
        ([math.inf, 0.0], math.inf),
        ([math.nan, 1.0], math.nan),
        ([math.nan, math.inf], math.nan),
    ],
)
def test_total_norm(norms, truth):
    got = float(total_norm([jnp.full((1,), n, jnp.float32) for n in norms])[0])
    np.testing.assert_allclose(got, np.float32(truth), rtol=1e-6)


def test_total_norm_of_many_leaves():
    rng = np.random.default_rng(3)
    norms = rng.uniform(size=(300, 5)).astype(np.float32)
    leaves = [Norm(jnp.asarray(n), jnp.asarray(n)) for n in norms]
    norm = tree_norm(leaves)
    truth = np.sqrt(np.sum(norms.astype(np.float64) ** 2, axis=0))
    assert np.all(np.asarray(norm.upper) >= truth)
    assert np.all(np.asarray(norm.upper) <= truth * 1.0001)
    np.testing.assert_allclose(norm.estimate, truth, rtol=1e-5)


def assert_pieces_on_shards_add_up(shards):
    # The first square is one, and every other is just too small to change a sum that includes it.
    pieces = np.full((shards, 2), np.sqrt(0.99 * 2.0**-24), np.float32)
    pieces[0] = 1
    pieces[:, 1] = 3  # and pieces that all count alike
    mesh = Mesh(np.array(jax.devices()[:shards]), ("model",))

    def upper(piece):
        return tree_norm([Norm(piece[0], piece[0])]).upper

    spec = PartitionSpec
    run = jax.shard_map(upper, mesh=mesh, in_specs=spec("model"), out_specs=spec())
    truth = np.sqrt(np.sum(pieces.astype(np.float64) ** 2, axis=0))
    got = np.asarray(jax.jit(run)(pieces), np.float64)
    assert np.all(got >= truth * (1 + 2.0**-23)), got / truth - 1  # includes slack for the product
    assert np.all(got <= truth * 1.0001), got / truth - 1


def test_pieces_on_shards_add_up():
    assert_pieces_on_shards_add_up(8)


def test_pieces_on_very_many_shards_add_up():
    # The sum over shards rounds once per shard. A subprocess simulates more devices.
    code = (
        "import jax; jax.config.update('jax_platforms', 'cpu')\n"
        "jax.config.update('jax_num_cpu_devices', 256)\n"
        "from test_coefficients import assert_pieces_on_shards_add_up as check; check(256)"
    )
    here = Path(__file__).resolve()
    path = [str(here.parent), str(here.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr[-2000:]


def test_a_huge_norm_has_no_coefficient_of_few_bits():
    # limit / norm is subnormal. Rounded to a few bits, it could exceed the bound by far.
    norms = np.float32([1e36, 2.7e37, 1e38, 3e38])
    factors = np.asarray(coefficients(norm_of(norms), 1e-6, Clip.checked(1e-6)), np.float64)
    assert np.all(factors * norms.astype(np.float64) <= 1e-6 * (1 + 2.0**-23))


@pytest.mark.parametrize("limit", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_that_is_not_finite_gives_no_nan(kind, limit):
    # The coefficient multiplies zeros where an example is excluded, and NaN times zero is NaN.
    clip = Clip.checked(limit, **KINDS[kind])
    factors = coefficients(norm_of([math.nan, math.inf, 1.0]), limit, clip)
    assert np.all(np.isfinite(np.asarray(factors)[[0, 1]]))


def test_a_clip_norm_above_the_range_of_float32_clips_nothing():
    factors = coefficients(norm_of([1.0, 3e38]), 1e39, Clip.checked(1e39))
    np.testing.assert_array_equal(factors, 1.0)


def test_usable():
    norm = norm_of([1.0, math.nan, math.inf, 0.0])
    padding = jnp.array([False, False, False, True])
    assert usable(norm, None, nan_safe=False) is None
    np.testing.assert_array_equal(usable(norm, None, nan_safe=True), [True, False, False, True])
    np.testing.assert_array_equal(usable(norm, padding, True), [True, False, False, False])
    np.testing.assert_array_equal(usable(norm, padding, False), [True, True, True, False])
