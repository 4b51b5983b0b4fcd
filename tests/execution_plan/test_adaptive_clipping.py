"""Adaptive clipping: gradient and count are one vector, with one bound, noise and event."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from plans import CONFIGS, plan

from bevel.errors import FixArgumentsError
from bevel.execution_plan import AdaptiveClipping, PlanSecrets
from bevel.execution_plan.adaptive_clipping import MAX_NORM, CountedGradient, UnclippedCount

PLAN = plan("dpsgd_adaptive")
ROWS, WIDTH = 8, 4


def loss(w, x):
    return jnp.sum(x @ w)  # the gradient of a row is the row itself


@jax.jit
def counted(clip_norm, x, padding):
    return PLAN.clipped_grad(loss, clip_norm=clip_norm)(
        jnp.zeros(WIDTH), x, is_padding_example=padding
    )


def vector(sums):
    return np.concatenate([np.asarray(sums.gradient, float), [float(sums.unclipped)]])


def test_gradients_are_divided_by_the_clip_norm_and_the_unclipped_are_counted():
    x = np.zeros((ROWS, WIDTH), np.float32)
    x[:, 0] = [0.5, 1.0, 2.0, 3.0, 4.0, np.nan, 0.0, 9.0]
    padding = np.arange(ROWS) == 7
    sums = counted(np.float32(2.0), x, padding)
    np.testing.assert_allclose(sums.gradient[0] * 10, (0.5 + 1 + 2 + 2 + 2) / 2, rtol=1e-5)
    # 0.5, 1, 2 (up to slack) and 0 are unclipped; 3, 4 and NaN are not.
    np.testing.assert_allclose(sums.unclipped * 10 / PLAN.counting.scale, (4 - 3) / 2, rtol=1e-6)


@settings(max_examples=60)
@given(st.data())
def test_neighbours_differ_by_at_most_the_sensitivity(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    clip = np.float32(10.0 ** data.draw(st.floats(-3, 3)))
    x = (rng.normal(size=(ROWS, WIDTH)) * 10.0 ** rng.uniform(-4, 4, (ROWS, 1))).astype(np.float32)
    odd = data.draw(st.sampled_from([None, np.nan, np.inf, 1e38, 0.0]))
    if odd is not None:
        x[0] = odd
    here = np.zeros(ROWS, bool)
    gone = np.arange(ROWS) == 0
    replaced = x.copy()
    replaced[0] = -x[0] if data.draw(st.booleans()) else rng.normal(size=WIDTH) * clip
    function = PLAN.clipped_grad(loss, clip_norm=1.0)  # its sensitivity is that of any clip norm
    rounding = 2 * function.rounding_bound(ROWS, rows_per_example=1)
    base = vector(counted(clip, x, here))
    for relation, other in [
        ("ADD_OR_REMOVE_ONE", counted(clip, x, gone)),
        ("REPLACE_SPECIAL", counted(clip, x, gone)),
        ("REPLACE_ONE", counted(clip, replaced, here)),
    ]:
        moved = np.linalg.norm(base - vector(other))
        assert moved <= function.sensitivity(relation) + rounding


def test_the_bound_is_reached():
    x = np.ones((ROWS, WIDTH), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-4)
    here = np.zeros(ROWS, bool)
    moved = vector(counted(np.float32(1), x, here)) - vector(
        counted(np.float32(1), x, np.arange(ROWS) == 0)
    )
    assert np.linalg.norm(moved) == pytest.approx(PLAN.l2_norm_bound, rel=1e-3)


@given(noise=st.floats(0.3, 30), count=st.floats(0.1, 1e4), batch=st.floats(1, 1e5))
def test_the_noise_of_both_is_that_of_the_paper(noise, count, batch):
    options = AdaptiveClipping(count_stddev=count)
    counting = UnclippedCount(options, noise, batch, batch, True, 1.0)
    if count <= noise / 2:
        with pytest.raises(FixArgumentsError, match="count_stddev above"):
            _ = counting.scale
        return
    stddev = noise * counting.l2_norm_bound  # of every coordinate, as the plan has it
    z_g = stddev * batch
    sigma = stddev * batch / counting.scale
    assert sigma == pytest.approx(count, rel=1e-6)
    assert z_g == pytest.approx((noise**-2 - (2 * count) ** -2) ** -0.5, rel=1e-6)
    assert z_g == pytest.approx(counting.gradient_noise_multiplier, rel=1e-6)


def test_the_event_is_that_of_the_same_noise_without_adaptation():
    assert PLAN.dp_event == plan("dpsgd").dp_event
    # A part of the budget goes to the count, so gradients get more noise than without.
    assert PLAN.noise_stddev > plan("dpsgd").noise_stddev


def test_the_noised_count_alone_updates_the_clip_norm():
    noise = PLAN.noise_addition_transform
    state = noise.init(jnp.zeros(WIDTH))
    nothing = CountedGradient(jnp.zeros(WIDTH), jnp.float32(0))

    def step(state, _):
        before = state._replace(clip_norm=jnp.float32(1.0))
        _, after = noise.update(nothing, before)
        return after, after.clip_norm

    _, norms = jax.lax.scan(step, state, None, 3000)
    # log(norm) = -0.2 * (count / 10), cut off where the share would leave [0, 1].
    counts = np.log(np.asarray(norms)) / -0.2 * 10
    inside = np.abs(counts) < 4.99
    sigma = PLAN.counting.count_stddev
    assert sigma == 1.5
    assert inside.mean() > 0.99 and np.std(counts) == pytest.approx(sigma, rel=0.06)
    assert abs(np.mean(counts)) < 0.1


def test_one_program_serves_all_clip_norms_and_the_quantile_is_found():
    config = dataclasses.replace(
        CONFIGS["dpsgd"],
        num_examples=4000,
        expected_batch_size=512,
        noise_multiplier=1.0,
        l2_clip_norm=50.0,
        adaptive_clipping=AdaptiveClipping(target_quantile=0.7),
    )
    made = config.make(secrets=PlanSecrets.for_tests(1))
    noise = made.noise_addition_transform
    rng = np.random.default_rng(0)
    w = jnp.zeros(1)

    @jax.jit
    def step(state, x):
        sums = made.clipped_grad(loss, clip_norm=made.clip_norm(state))(w, x)
        return noise.update(sums, state)[1]

    state, seen = noise.init(w), []
    for _ in range(120):
        state = step(state, rng.exponential(size=(512, 1)).astype(np.float32))
        seen.append(float(made.clip_norm(state)))
    assert step._cache_size() == 1
    quantile = -math.log(1 - 0.7)
    assert np.mean(seen[-40:]) == pytest.approx(quantile, rel=0.1)


@pytest.mark.parametrize("rescaled", [True, False])
def test_the_gradient_comes_back_in_its_own_units_unless_it_is_rescaled(rescaled):
    config = dataclasses.replace(
        CONFIGS["dpsgd_adaptive"], rescale_to_unit_norm=rescaled, noise_multiplier=1e-4
    )
    made = config.make(secrets=PlanSecrets.for_tests(1))
    noise = made.noise_addition_transform
    state = noise.init(jnp.zeros(WIDTH))._replace(clip_norm=jnp.float32(4.0))
    x = np.eye(WIDTH, dtype=np.float32)
    sums = made.clipped_grad(loss, clip_norm=made.clip_norm(state))(jnp.zeros(WIDTH), x)
    found, _ = noise.update(sums, state)
    np.testing.assert_allclose(found * 10, 0.25 if rescaled else 1.0, rtol=0.01)


def test_outputs_of_examples_are_those_of_clipped_grad():
    x = np.eye(WIDTH, dtype=np.float32)
    w = jnp.zeros(WIDTH)

    def with_aux(w, x):
        return loss(w, x), x.sum()

    options = {"return_values": True, "return_grad_norms": True}
    sums, aux = PLAN.clipped_grad(with_aux, has_aux=True, clip_norm=1.0, **options)(w, x)
    assert isinstance(sums, CountedGradient)
    np.testing.assert_allclose(aux.grad_norms, 1.0, rtol=1e-5)
    assert aux.values.shape == aux.aux.shape == (WIDTH,)
    _, aux = PLAN.clipped_grad(loss, clip_norm=1.0, return_values=True)(w, x)
    assert aux.grad_norms is None


def test_a_mesh_does_not_matter():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    padding = np.arange(ROWS) > 5
    expected = vector(counted(np.float32(1.5), x, padding))
    placed = jax.device_put(x, NamedSharding(mesh, P("data")))
    np.testing.assert_allclose(
        vector(counted(np.float32(1.5), placed, padding)), expected, rtol=1e-5
    )

    def shard(x, padding):
        return PLAN.clipped_grad(loss, clip_norm=1.5, reduce_axes=("data",))(
            jnp.zeros(WIDTH), x, is_padding_example=padding
        )

    whole = jax.shard_map(shard, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())
    np.testing.assert_allclose(vector(whole(x, padding)), expected, rtol=1e-5)


def test_clip_norms_stay_finite():
    counting = PLAN.counting
    high = counting.next_clip_norm(jnp.float32(MAX_NORM), jnp.float32(-1e9))
    assert float(high) == MAX_NORM
    low = counting.next_clip_norm(jnp.float32(1.0), jnp.float32(1e9))
    assert float(low) == pytest.approx(math.exp(-0.1))


def test_mistakes_say_what_to_pass():
    noise = PLAN.noise_addition_transform
    state = noise.init(jnp.zeros(WIDTH))
    with pytest.raises(FixArgumentsError, match=r"clip_norm=plan.clip_norm"):
        PLAN.clipped_grad(loss)
    with pytest.raises(FixArgumentsError, match="CountedGradient"):
        noise.update(jnp.zeros(WIDTH), state)
    with pytest.raises(FixArgumentsError, match="pass the state"):
        PLAN.clip_norm(state.noise)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_quantile": 1.5}, "target_quantile"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"count_stddev": 0.0}, "must have noise"),
        ({"count_stddev": math.nan}, "must have noise"),
    ],
)
def test_bad_options_say_what_to_write(options, message):
    with pytest.raises(FixArgumentsError, match=message):
        AdaptiveClipping(**options)
