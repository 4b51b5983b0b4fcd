"""Layer by layer: the same norms and sums as for all layers at once, sharded like the parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from clipping.uses.test_taps import QUICK, decided, draw, squared, traced
from compare import assert_close
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.accumulate import example_gradients
from bevel.clipping.accumulate.slices import (
    goes_by_slice,
    norm_by_slice,
    tied_to_slice,
    weighted_sum_by_slice,
)
from bevel.clipping.plan import tapped_parameter
from bevel.clipping.uses.taps import HoldValues, differentiate
from bevel.clipping.uses.views import is_one_slice_per_step
from bevel.sharding.axes import MeshLayout

B, CLIP_NORM = 8, 0.4


def dense(w, x):
    return squared(lax.scan(lambda h, v: (jnp.tanh(h @ v), None), x, w)[0])


def transposed(w, x):
    return squared(lax.scan(lambda h, v: (jnp.tanh(h @ v.T), None), x, w)[0])


def looked_up(w, k):
    rows = lax.scan(lambda h, v: (h + jnp.tanh(v[k]), None), jnp.zeros((1, 4, 6)), w)[0]
    return squared(rows)


def convolved(w, x):
    def step(h, v):
        return jnp.tanh(lax.conv_general_dilated(h, v, (1, 1), "SAME")), None

    return squared(lax.scan(step, x, w)[0])


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 5, (B, 1, 4)))
CASES = {
    "dense": (dense, draw(3, 6, 6) / 3, draw(B, 1, 4, 6)),
    "lookup": (looked_up, draw(3, 5, 6) / 3, TOKENS),
    "convolution": (convolved, draw(3, 2, 2, 3, 3) / 3, draw(B, 1, 2, 4, 4)),
}


def tapped(loss, param, rows, way="gram"):
    """The tap of the only parameter, and the gradients of B examples at its uses."""
    program, flat = traced(param, rows, loss)
    tap = tapped_parameter(decided(program, flat, way)[0], param)
    reads = [(use, HoldValues()) for use in tap.uses]
    readings = jax.vmap(lambda row: differentiate(program, reads, [], [param, row])[2])(rows)
    return tap, tap.gradients(readings)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_same_norms_and_sums_as_for_all_layers_at_once(name, scaled):
    loss, param, rows = CASES[name]
    tap, gradients = tapped(loss, param, rows)
    assert goes_by_slice(tap, gradients, MeshLayout())
    (whole,) = tap.norms(gradients, scaled)
    parts = norm_by_slice(tap, gradients[0], scaled)
    np.testing.assert_allclose(parts.norm.estimate, whole.norm.estimate, rtol=1e-5)
    assert np.all(parts.norm.upper >= parts.norm.estimate)
    assert np.all(parts.norm.upper <= 1.001 * whole.norm.upper)
    np.testing.assert_array_equal(parts.sound, whole.sound)
    factor, keep = draw(B), jnp.arange(B) != 3
    total = weighted_sum_by_slice(tap, gradients[0], factor, keep, param, MeshLayout())
    assert_close(total, np.asarray(tap.weighted_sum(gradients, factor, keep)), 1e-5)


def test_one_layer_out_of_range_makes_the_norm_unsound():
    tap, (gradient,) = tapped(*CASES["dense"])
    large = jax.tree.map(lambda x: x.at[2, 1].multiply(1e30), gradient)
    assert list(norm_by_slice(tap, large, False).sound) == [True] * 2 + [False] + [True] * 5


def test_only_where_each_step_reads_its_own_slice_as_it_is():
    tap, gradients = tapped(transposed, *CASES["dense"][1:])
    assert not is_one_slice_per_step(tap.uses[0].view)
    assert not goes_by_slice(tap, gradients, MeshLayout())
    tap, gradients = tapped(*CASES["dense"])
    assert not goes_by_slice(tap, gradients, MeshLayout(manual=True))
    tap, gradients = tapped(lambda w, x: squared(jnp.tanh(x @ w)), draw(6, 6), draw(B, 1, 4, 6))
    assert not goes_by_slice(tap, gradients, MeshLayout())


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_sum_of_a_layer_is_sharded_like_its_slice(is_known):
    place = NamedSharding(mesh(), P(None, "data", "model"))
    param = jax.device_put(jnp.zeros((3, 8, 6)), place)
    layout = MeshLayout(params=(place,) if is_known else ())

    def tied(param, total):
        return tied_to_slice(total, param, 1, layout, 0)

    result = jax.jit(tied)(param, draw(8, 6))
    assert result.sharding.is_equivalent_to(NamedSharding(mesh(), P("data", "model")), 2)
    np.testing.assert_array_equal(result, draw(8, 6))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("eager", [False, True])
def test_equals_the_oracle_on_a_mesh(kind, eager, monkeypatch):
    def loss(p, x):
        block = lambda h, w: (h + jnp.tanh(h @ w["up"]) @ w["down"], None)  # noqa: E731
        return squared(lax.scan(block, x, p)[0])

    params = {"down": draw(3, 8, 8) / 4, "up": draw(3, 8, 8) / 4}
    batch = draw(B, 4, 8) * 2.0 ** jnp.linspace(-3.0, 2.0, B)[:, None, None]
    expected = oracle.clipped_sum(loss, params, batch, clip_norm=CLIP_NORM)
    place = NamedSharding(mesh(kind), P(None, "data"))
    params = jax.device_put(params, place)
    batch = jax.device_put(batch, NamedSharding(mesh(kind), P("data")))
    asked = []

    def by_slice(*args):
        asked.append(goes_by_slice(*args))
        return asked[-1]

    monkeypatch.setattr(example_gradients, "goes_by_slice", by_slice)
    fn = bevel.clipped_grad(loss, l2_clip_norm=CLIP_NORM, norms="gram")
    got = (fn if eager else jax.jit(fn, compiler_options=QUICK))(params, batch)
    assert asked and all(asked)
    assert_close(jax.tree.map(np.asarray, got), expected.grad, 1e-4)
    assert all(x.sharding.is_equivalent_to(place, 3) for x in jax.tree.leaves(got))
