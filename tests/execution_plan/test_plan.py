"""Plans: what runs is what is accounted for."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from plans import CONFIGS, NOISE, STEPS, N, plan

import bevel
from bevel.accounting import Budget, dpsgd_event
from bevel.batch_selection import FixedBatchSampling
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PerformanceFlags
from bevel.execution_plan.plan import SET_BY_PLAN

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(6, 3)).astype(np.float32)


def loss(w, x):
    return jnp.mean((x @ w - 1.0) ** 2)


def test_the_names_of_jax_privacy():
    made = plan("dpsgd")
    for name in (
        "clipped_grad",
        "batch_selection_strategy",
        "noise_addition_transform",
        "dp_event",
        "neighboring_relation",
    ):
        assert hasattr(made, name)
    assert bevel.DPExecutionPlan is DPExecutionPlan
    assert "BandMFConfig" in dir(bevel) and "make" in dir(bevel.execution_plan.ExecutionPlanConfig)
    with pytest.raises(AttributeError, match="no attribute 'Plan'"):
        _ = bevel.Plan
    with pytest.raises(AttributeError, match="no attribute 'Plan'"):
        _ = bevel.execution_plan.Plan


def test_a_sampler_and_an_event_that_do_not_belong_together_cannot_be_written():
    made = plan("dpsgd")
    other = dpsgd_event(100.0, 1, sampling_prob=0.01)
    for name, value in [("dp_event", other), ("batch_selection_strategy", None)]:
        with pytest.raises(TypeError, match=name):
            dataclasses.replace(made, **{name: value})
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, value)
        assert name not in inspect.signature(DPExecutionPlan).parameters
    with pytest.raises(ValueError, match="noise_addition_transform"):
        dataclasses.replace(made, noise_addition_transform=None)
    # With another sampler, everything else changes with it, or is refused.
    mechanism = dataclasses.replace(made.mechanism, sampler=FixedBatchSampling(10, STEPS))
    with pytest.raises(FixArgumentsError, match="no guarantee is proven"):
        _ = dataclasses.replace(made, mechanism=mechanism).dp_event
    mechanism = dataclasses.replace(mechanism, neighboring_relation="REPLACE_ONE")
    changed = dataclasses.replace(made, mechanism=mechanism)
    assert changed.dp_event == plan("fixed").dp_event
    assert changed.batch_selection_strategy == plan("fixed").batch_selection_strategy


@pytest.mark.parametrize("name", sorted(SET_BY_PLAN))
def test_options_of_the_plan_cannot_be_passed_to_clipped_grad(name):
    with pytest.raises(FixArgumentsError, match=f"the plan sets {name}"):
        plan("dpsgd").clipped_grad(loss, **{name: 1})


def test_sums_are_clipped_as_the_config_says():
    config = dataclasses.replace(
        CONFIGS["dpsgd"], l2_clip_norm=0.5, rescale_to_unit_norm=False, normalize_by=4.0
    )
    made = config.make(PerformanceFlags(microbatch_size=2))
    w = jnp.ones(3)
    found = made.clipped_grad(loss)(w, DATA)
    expected = oracle.clipped_sum(loss, w, DATA, clip_norm=0.5).grad
    np.testing.assert_allclose(found, np.asarray(expected) / 4, rtol=1e-5)
    assert made.l2_norm_bound == 0.125 and made.noise_stddev == pytest.approx(1.5 * 0.125)
    assert made.padded_sizes(multiple=3).multiple == 6


def test_users_are_clipped_as_one():
    made = plan("dpsgd_users")
    w, users = jnp.ones(3), DATA.reshape(3, 2, 3)
    found = made.clipped_grad(loss)(w, users)
    grads = [np.asarray(jax.grad(loss)(w, user)) for user in users]
    expected = sum(g / max(1.0, np.linalg.norm(g)) for g in grads)
    np.testing.assert_allclose(found, expected / 10, rtol=1e-5)


@pytest.mark.parametrize("name", ["dpsgd", "bandmf", "bandmf_normalized", "blt"])
def test_noise_is_as_large_and_as_correlated_as_was_accounted_for(name):
    made = plan(name)
    noise = made.noise_addition_transform
    zeros = jnp.zeros(4000)
    state = noise.init(zeros)
    adaptive = made.counting is not None

    @jax.jit
    def step(state):
        sums = zeros
        if adaptive:
            sums = made.clipped_grad(lambda w, x: (x @ w).sum(), clip_norm=made.clip_norm(state))(
                zeros, jnp.zeros((1, 4000)), is_padding_example=jnp.ones(1, bool)
            )
        return noise.update(sums, state)

    drawn = []
    for _ in range(STEPS):
        out, state = step(state)
        drawn.append(np.asarray(out))
    column = np.zeros(STEPS)
    first = made.mechanism.noise_matrix.first_column(STEPS)
    column[: len(first)] = first
    matrix = sum(c * np.eye(STEPS, k=-k) for k, c in enumerate(column))
    if name == "bandmf_normalized":
        matrix /= np.linalg.norm(matrix, axis=0)
    uses = [0, 4, 8] if name == "blt" else [0]  # without amplification, all uses of an example
    sensitivity = np.linalg.norm(matrix[:, uses].sum(axis=1))
    stddev = NOISE * sensitivity * made.l2_norm_bound
    assert made.noise_stddev == pytest.approx(stddev, rel=1e-6)
    z = matrix @ np.stack(drawn) / made.noise_stddev
    covariance = z @ z.T / z.shape[1]
    np.testing.assert_allclose(covariance, np.eye(STEPS), atol=0.1)
    np.testing.assert_allclose(np.mean(np.diag(covariance)), 1.0, atol=0.02)
    norms = made.noise_row_norms()
    spread = np.std(drawn, axis=1) / made.noise_stddev
    np.testing.assert_allclose(spread, np.ones(STEPS) if norms is None else norms, rtol=0.06)


def test_noise_of_another_attempt_is_other_noise():
    made = plan("dpsgd")
    noise, w = made.noise_addition_transform, jnp.zeros(4)
    state = noise.init(w)
    outs = [
        np.asarray(noise.update(w, state, prng_key=made.secrets.of_attempt(k).noise_key)[0])
        for k in (0, 0, 1)
    ]
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], noise.update(w, state)[0])
    assert np.abs(outs[0] - outs[2]).min() > 0
    assert any(not np.array_equal(made.batch(k, N), made.batch(k, N, attempt=1)) for k in range(3))


def test_the_dtype_of_the_result_is_that_of_the_flags():
    made = plan("dpsgd", flags=PerformanceFlags(dtype="bfloat16"))
    w = jnp.zeros(4)
    assert made.noise_addition_transform.update(w, made.noise_addition_transform.init(w))[
        0
    ].dtype == (jnp.bfloat16)


def test_the_data_set_must_be_the_one_that_was_planned_for():
    with pytest.raises(FixArgumentsError, match="59 examples, but the plan was made for 60"):
        plan("dpsgd").batch(0, 59)
    with pytest.raises(FixArgumentsError, match="59 examples"):
        plan("dpsgd").batches(59)


def test_epsilon_of_steps():
    made = dataclasses.replace(plan("dpsgd"), budget=Budget(3.0, 1e-3))
    each = made.epsilon_after_each_step(points=3)
    assert made.epsilon(0) == 0.0
    assert each[-1] == made.epsilon() == made.epsilon(STEPS, delta=1e-3)
    assert np.all(np.diff(each) >= 0) and each[3] >= made.epsilon(4)
    with pytest.raises(FixArgumentsError, match="pass at most 12, the number of steps"):
        made.epsilon(STEPS + 1)
    with pytest.raises(FixArgumentsError, match="pass delta="):
        plan("dpsgd").epsilon()
