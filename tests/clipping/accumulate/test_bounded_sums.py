"""What enters the sum is bounded, even if the second pass computes other values than the first."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping.uses.test_taps import QUICK, draw, squared
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.accumulate.bounded_sums import BoundedSums, rounding_of_bounds
from bevel.clipping.norms import Norm

MODES = ["low", "boundaries"]
D, T, SIZE, CLIP_NORM = 8, 4, 8, 1e-3
WEIGHT, BATCH = draw(D, D), draw(SIZE, T, D)


def length(tree):
    leaves = [np.float64(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return np.sqrt(sum((leaf**2).sum() for leaf in leaves))


def contributions(fn, params, batch):
    """The length of each example's contribution, where all other rows are padding."""
    rows = [np.arange(SIZE) != i for i in range(SIZE)]
    placed = [jax.device_put(row, batch.sharding) for row in rows]
    return np.array([length(fn(params, batch, is_padding_example=row)) for row in placed])


def clipped(fun, memory):
    fn = bevel.clipped_grad(fun, l2_clip_norm=CLIP_NORM, norms="gram", memory=memory)
    return jax.jit(fn, compiler_options=QUICK)


def changed(memory, scale_of_pass):
    """Contributions of a loss whose gradient is scaled by another number in each pass.

    It stands for a kernel that is not deterministic, or for passes that are compiled differently.
    """
    calls = collections.Counter()

    def host(x):
        calls[float(x)] += 1
        return np.float32(scale_of_pass(calls[float(x)]))

    @jax.checkpoint
    def loss(w, x):
        scale = jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0, 0])
        return squared(x @ w) * scale

    fn = clipped(loss, memory)

    def afresh(*args, **options):
        calls.clear()
        return jax.block_until_ready(fn(*args, **options))

    found = contributions(afresh, WEIGHT, BATCH)
    assert max(calls.values()) > 1
    return found / CLIP_NORM


@pytest.mark.parametrize("memory", MODES)
def test_an_example_that_has_become_longer_is_clipped_again(memory):
    found = changed(memory, lambda k: 1 if k == 1 else 3)
    assert np.all(found <= 1) and np.all(found >= 0.95)


@pytest.mark.parametrize("memory", MODES)
def test_an_example_that_becomes_longer_every_time_is_left_out(memory):
    assert np.all(changed(memory, lambda k: 2.0**k) == 0)


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_example_that_is_no_longer_finite_is_left_out(value, memory):
    assert np.all(changed(memory, lambda k: 1 if k == 1 else value) == 0)


UP, DOWN = P("data", None, "model"), P("data", None, None)


def chaotic(x):
    """The logistic map: rounding errors double at each of its 20 steps."""
    x = jax.nn.sigmoid(x)
    for _ in range(20):
        x = 3.99 * x * (1 - x)
    return x


def product(x, w, out):
    explicit = jax.typeof(x).sharding.mesh.are_all_axes_explicit
    out = NamedSharding(jax.sharding.get_abstract_mesh(), out) if explicit else None
    return jnp.einsum("btd,dk->btk", x, w, out_sharding=out)


def chaotic_loss(p, x):
    @jax.checkpoint
    def layer(h, w):
        h = h + product(chaotic(product(h, w["up"], UP)), w["down"], DOWN)
        return h / (1 + jnp.sum(h * h, axis=-1, keepdims=True))

    return squared(lax.scan(lambda h, w: (layer(h, w), None), x, p)[0])


@pytest.mark.parametrize("memory", MODES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_a_chaotic_loss_on_a_tensor_parallel_mesh(kind, memory):
    """There the two passes may be partitioned differently, and this loss amplifies rounding."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    specs = {"up": P(None, None, "model"), "down": P(None, "model", None)}
    params = {"up": draw(2, D, 16), "down": draw(2, 16, D)}
    with jax.set_mesh(mesh):
        params = {n: jax.device_put(p, NamedSharding(mesh, specs[n])) for n, p in params.items()}
        batch = jax.device_put(BATCH, NamedSharding(mesh, P("data")))
        found = contributions(clipped(chaotic_loss, memory), params, batch)
    assert np.all(found <= CLIP_NORM) and np.all(found >= 0.9 * CLIP_NORM)


GRADIENTS = draw(6, 5)
NORMS = jnp.linalg.norm(GRADIENTS, axis=1)
FIRST = {0: Norm(NORMS, NORMS * (1 + 2 * rounding_of_bounds(1)))}


def sums_of(longer, gradients=GRADIENTS):
    """The sum, and how many passes it took. `longer(factor)` multiplies each gradient."""

    def second_pass(gradients, factors, keep):
        own = gradients * longer(factors[0])[:, None]
        norms = jnp.linalg.norm(own, axis=1)
        jax.debug.callback(lambda: passes.append(1))
        total = jnp.sum(jnp.where(keep[:, None], own * factors[0][:, None], 0), axis=0)
        return {0: total}, {0: Norm(norms, norms)}

    passes = []
    run = BoundedSums(second_pass, {0: 0}, ()).sums
    found = run(gradients, [jnp.ones(6)], jnp.ones(6, bool), FIRST)[0]
    jax.effects_barrier()
    return found, len(passes)


def test_equal_passes_run_once():
    found, passes = sums_of(jnp.ones_like)
    np.testing.assert_allclose(found, GRADIENTS.sum(axis=0), rtol=1e-5)
    assert passes == 1


def test_only_what_became_longer_is_shortened():
    found, passes = sums_of(lambda factor: jnp.ones(6).at[2].set(4.0))
    expected = GRADIENTS.at[2].multiply(1 - 2.0**-7).sum(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert passes == 2


def test_only_what_outgrows_its_coefficient_is_left_out():
    found, passes = sums_of(lambda factor: jnp.ones(6).at[2].set(2 / factor[2] ** 2))
    np.testing.assert_allclose(found, GRADIENTS.at[2].set(0.0).sum(axis=0), rtol=1e-5)
    assert passes == 3


@pytest.mark.parametrize("memory", MODES)
def test_the_sum_can_be_differentiated(memory):
    def loss(w, x):
        return squared(jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(w, x))

    def of(**options):
        fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, **options)
        return jax.grad(lambda w: squared(fn(w, BATCH)))(WEIGHT / 4)

    expected = of(engine="vmap")
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(of(memory=memory, norms="gram"), expected, atol=1e-3 * scale)
