"""The trainer: its step is the flow, its options do what they say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training_runs as runs
from jax.sharding import PartitionSpec as P

import bevel
from bevel.accounting import Ledger
from bevel.errors import FixArgumentsError, FixDataError, FixLossError
from bevel.execution_plan import (
    AdaptiveClipping,
    BandMFConfig,
    DPSGDConfig,
    NonPrivateConfig,
    PlanSecrets,
)
from bevel.optimizers import dp_adam, scale_then_privatize
from bevel.sharding import make_mesh
from bevel.training import Augmentation, DPTrainer, Trainer, TrainingState
from bevel.training.metrics_files import read_lines


@pytest.fixture(scope="module")
def unbroken():
    return runs.fit()


def test_a_run_is_the_loop_that_a_reader_would_write(unbroken):
    plan, data = runs.plan(), runs.data()
    params, optimizer = runs.params(), optax.sgd(0.5, momentum=0.9)
    opt_state, noise = optimizer.init(params), plan.noise_addition_transform
    noise_state = noise.init(params)
    gradient = plan.clipped_grad(
        lambda p, d: runs.loss(p, d, None), has_aux=True, batch_argnums=1, return_values=True
    )
    for step in range(runs.STEPS):
        rows = plan.batch(step, runs.N)
        batch = jax.tree.map(lambda x, rows=rows: x[rows], data)
        sums, _ = gradient(params, batch)
        noised, noise_state = noise.update(sums, noise_state)
        updates, opt_state = optimizer.update(noised, opt_state, params)
        params = optax.apply_updates(params, updates)
    for name in params:
        np.testing.assert_allclose(unbroken.params[name], params[name], atol=1e-6)
    assert int(unbroken.step) == runs.STEPS


def test_the_mesh_does_not_matter(unbroken):
    for mesh, rules in [
        ("data=8", "replicated"),
        ("data=4,model=2", [("w", P(None, "model")), ("*", P())]),
    ]:
        state = runs.fit(of=runs.trainer(mesh=make_mesh(mesh), rules=rules))
        for name in ("w", "b"):
            np.testing.assert_allclose(state.params[name], unbroken.params[name], atol=1e-6)
    assert state.params["w"].sharding.spec == P(None, "model")


def test_explicit_axes_will_do_too(unbroken):
    mesh = make_mesh("data=8", axis_types="explicit")
    state = runs.fit(of=runs.trainer(mesh=mesh))
    np.testing.assert_allclose(state.params["w"], unbroken.params["w"], atol=1e-6)


def test_train_step_by_hand_is_the_step_of_fit(unbroken):
    trainer = runs.trainer()
    state, data = trainer.init(runs.params()), runs.data()
    for step in range(2):
        rows = trainer.plan.padded_sizes(count=1).pad(trainer.plan.batch(step, runs.N))
        batch = jax.tree.map(lambda x, rows=rows: x[np.maximum(rows, 0)], data)
        state, aux = trainer.train_step(state, batch, jnp.asarray(rows < 0), jax.random.key(0))
    expected = runs.fit(callback=runs.at_step(2))
    np.testing.assert_allclose(state.params["w"], expected.params["w"], atol=1e-6)
    assert aux.values.shape == aux.grad_norms.shape == rows.shape
    assert isinstance(state, TrainingState) and DPTrainer is Trainer


def test_parameters_that_are_given_stay_as_they_are(unbroken):
    params = runs.params()
    runs.fit(begin=params, callback=runs.at_step(2))
    assert not params["w"].is_deleted() and not np.asarray(params["w"]).any()


def test_frozen_parameters_have_neither_gradient_nor_noise_nor_state():
    params = {"base": {"w": jnp.ones((4, 2))}, "lora": {"b": jnp.zeros(2)}}

    def loss(p, batch, prng):
        return runs.loss({"w": p["base"]["w"], "b": p["lora"]["b"]}, batch, prng)

    state = runs.fit(of=runs.trainer(loss_fn=loss, trainable="lora/*"), begin=params)
    assert np.array_equal(state.params["base"]["w"], params["base"]["w"])
    assert np.abs(state.params["lora"]["b"]).min() > 0
    assert [x.shape for x in jax.tree.leaves(state.opt_state)] == [(2,)]
    with pytest.raises(FixArgumentsError, match="matches none"):
        runs.fit(of=runs.trainer(trainable="adapter/*"))


@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(0.1), optax.adamw(0.1, weight_decay=0.01), optax.sgd(0.1, momentum=0.9)],
    ids=["adam", "adamw", "momentum"],
)
def test_bfloat16_parameters_stay_bfloat16_and_the_optimizer_works_in_float32(optimizer):
    def loss(p, batch, prng):
        return runs.loss(jax.tree.map(lambda x: x.astype(jnp.float32), p), batch, prng)

    begin = jax.tree.map(lambda x: x.astype(jnp.bfloat16), runs.params())
    trainer = runs.trainer(loss_fn=loss, optimizer=optimizer, ema_decay=0.5)
    evaluated = []
    with jax.numpy_dtype_promotion("standard"):  # optax.adam needs it
        state = runs.fit(of=trainer, begin=begin, evaluate=lambda p: evaluated.append(p) or {})
    for tree in (state.params, evaluated[-1]):
        assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype("bfloat16")}
    # In bfloat16, an average with a decay of 0.999 would never move.
    assert {x.dtype for x in jax.tree.leaves(state.average)} == {jnp.dtype("float32")}
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert moments and {x.dtype for x in moments} == {jnp.dtype("float32")}
    assert np.abs(np.asarray(state.params["w"], np.float32)).min() > 0


def test_a_tree_of_booleans_trains_the_leaves_that_are_true():
    state = runs.fit(of=runs.trainer(trainable={"w": False, "b": True}))
    assert not np.asarray(state.params["w"]).any() and np.asarray(state.params["b"]).all()


def test_the_average_follows_the_parameters():
    seen = []
    trainer = runs.trainer(ema_decay=0.5)
    options = runs.options(checkpoint_every=1)
    state = runs.fit(
        of=trainer, options=options, callback=lambda s, m: seen.append(np.asarray(s.params["w"]))
    )
    average = np.zeros((runs.D, 2))
    for step, w in enumerate(seen):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * w
    np.testing.assert_allclose(state.average["w"], average, atol=1e-6)
    evaluated = []
    runs.fit(of=runs.trainer(ema_decay=0.5), evaluate=lambda p: {"w": evaluated.append(p) or 0.0})
    np.testing.assert_array_equal(evaluated[-1]["w"], state.average["w"])


def test_views_of_one_example_are_clipped_as_one():
    shift = lambda d, key: d | {"x": d["x"] + 0.1 * jax.random.normal(key, d["x"].shape)}  # noqa: E731
    one = runs.trainer(augmentation=Augmentation(shift, views=4))
    state, data = one.init(runs.params()), runs.data()
    batch = jax.tree.map(lambda x: x[:6], data)
    key = jax.random.key(1)
    sums, aux = one.step.clip(state, (batch, None), jnp.zeros(6, bool), key)
    # One gradient per example: that of the mean over its views.
    at_step = jax.random.fold_in(key, 0)
    expected = jax.tree.map(jnp.zeros_like, runs.params())
    for row in range(6):
        keys = jax.random.split(jax.random.fold_in(at_step, row), 4)

        def loss(p, row=row, keys=keys):
            example = jax.tree.map(lambda x: x[row : row + 1], batch)
            views = [shift(example, jax.random.split(k)[0]) for k in keys]
            return sum(runs.loss(p, view, None)[0] for view in views) / 4

        gradient = jax.grad(loss)(runs.params())
        norm = optax.tree.norm(gradient)
        np.testing.assert_allclose(aux.grad_norms[row], norm, rtol=1e-5)
        scale = jnp.minimum(1, 1 / norm) / 8
        expected = jax.tree.map(lambda e, g, scale=scale: e + scale * g, expected, gradient)
    np.testing.assert_allclose(sums["w"], expected["w"], atol=1e-5)


def test_users_are_one_contribution_and_missing_examples_have_no_part():
    users = np.arange(runs.N) % 12  # 4 examples each
    users[users == 11] = 10
    users[-1] = 11  # one user with a single example
    plan = runs.plan(
        num_examples=12, expected_batch_size=6, unit="user", examples_per_user_per_batch=4
    )
    trainer = runs.trainer(config=plan)
    state, data = trainer.init(runs.params()), runs.data()
    rows = np.array([[0, 12, 24, 36], [runs.N - 1, -1, -1, -1]])
    batch = jax.tree.map(
        lambda x: np.where((rows >= 0).reshape(2, 4, *(1,) * (x.ndim - 1)), x[rows], 0), data
    )
    sums, _ = trainer.step.clip(
        state, (batch, jnp.asarray(rows < 0)), jnp.zeros(2, bool), jax.random.key(0)
    )
    total = jnp.zeros((runs.D, 2))
    for row in rows:
        mine = jax.tree.map(lambda x, row=row: x[row[row >= 0]], data)
        gradient = jax.grad(lambda p, mine=mine: runs.loss(p, mine, None)[0])(runs.params())
        total += gradient["w"] * jnp.minimum(1, 1 / optax.tree.norm(gradient)) / 6
    np.testing.assert_allclose(sums["w"], total, atol=1e-5)
    done = runs.fit(of=trainer, user_ids=users)
    assert int(done.step) == runs.STEPS
    with pytest.raises(FixArgumentsError, match="user_ids"):
        runs.fit(of=runs.trainer(config=plan))


@pytest.mark.full
def test_optimizers_of_the_plan_schedules_and_adaptive_clipping_run():
    changed = [
        {"optimizer": lambda plan: dp_adam(0.1, noise_stddev=plan.noise_stddev)},
        {"optimizer": optax.sgd(optax.linear_schedule(0.5, 0.0, runs.STEPS))},
        {"optimizer": scale_then_privatize(optax.sgd(0.1), 1.0, 0.0, lambda s: runs.params())},
        {"config": NonPrivateConfig(runs.STEPS, 8)},
        {"config": runs.plan(adaptive_clipping=AdaptiveClipping())},
    ]
    for fields in changed:
        state = runs.fit(of=runs.trainer(**fields))
        assert all(np.isfinite(x).all() for x in runs.arrays(state.params))
    assert float(state.noise_state.clip_norm) != 1.0


def test_nan_in_the_data_contributes_nothing(tmp_path):
    given = runs.data()
    given["x"][::3] = np.nan
    state = runs.fit(tmp_path / "run", given=given)
    assert all(np.isfinite(x).all() for x in runs.arrays(state.params))
    raw = list(read_lines(tmp_path / "run" / "private" / "raw.jsonl"))
    assert sum(row["not_finite"] for row in raw) > 5
    assert all(0 < row["loss"] < 10 for row in raw if row["not_finite"] < row["batch_size"])


def test_a_data_set_of_another_size_is_refused():
    with pytest.raises(FixDataError, match="has 40 examples, but the plan was made for 48"):
        runs.fit(given=runs.data(40))


def test_a_second_run_with_the_same_noise_is_refused():
    trainer = runs.trainer(config=runs.config())
    state = runs.fit(of=trainer, callback=runs.at_step(2))
    state = runs.fit(of=trainer, begin=state, callback=runs.at_step(4))
    assert int(state.step) == 4
    with pytest.raises(FixArgumentsError, match="same noise again"):
        runs.fit(of=trainer)


def test_what_is_wrong_is_said():
    with pytest.raises(FixArgumentsError, match="ema_decay"):
        runs.trainer(ema_decay=1.0)
    with pytest.raises(FixArgumentsError, match="config is a int"):
        runs.trainer(config=3)
    with pytest.raises(FixArgumentsError, match="already has performance flags"):
        runs.trainer(performance_flags=bevel.PerformanceFlags())
    with pytest.raises(FixLossError, match=r"must return a pair \(loss, aux\)"):
        runs.fit(of=runs.trainer(loss_fn=lambda p, d, k: runs.loss(p, d, k)[0]))
    with pytest.raises(
        FixArgumentsError, match=r"function optax\.adam: call it, as in optax\.adam"
    ):
        runs.fit(of=runs.trainer(optimizer=optax.adam))
    with pytest.raises(FixArgumentsError, match=r"needs more than the noised gradient.*'value'"):
        runs.fit(of=runs.trainer(optimizer=optax.contrib.reduce_on_plateau()))
    with pytest.raises(FixArgumentsError, match="not a state"):
        runs.fit("nowhere", begin=runs.trainer().init(runs.params()))
    with pytest.raises(FixArgumentsError, match="rng_or_seed was given with a folder"):
        runs.fit("nowhere", rng_or_seed=3)


def test_batches_of_another_seed_are_other_batches(unbroken):
    state = runs.fit(rng_or_seed=5)
    assert not runs.same_bits(state.params, unbroken.params)


def test_names_and_fields_are_those_of_the_compatibility_page():
    names = {field.name for field in dataclasses.fields(DPTrainer)}
    assert names >= {"config", "performance_flags", "loss_fn", "optimizer", "compilation_strategy"}
    fields = [field.name for field in dataclasses.fields(TrainingState)]
    assert fields[:4] == ["step", "params", "opt_state", "noise_state"]
    made = DPTrainer(
        config=DPSGDConfig.default(runs.N, 8, 2, noise_multiplier=1.0),
        loss_fn=runs.loss,
        optimizer=optax.sgd(0.1),
    )
    assert made.plan is made.plan and not made.plan.secrets.known
    assert PlanSecrets.for_tests(3) == runs.plan().secrets


def test_correlated_noise_goes_on_from_its_buffers(tmp_path):
    config = BandMFConfig.default(
        2, runs.STEPS, 2.0, strategy_optimization_steps=5, num_examples=runs.N, noise_multiplier=1.0
    )
    plan = config.make(secrets=PlanSecrets.for_tests(3))
    unbroken = runs.fit(of=runs.trainer(config=plan))
    for stop in (4, runs.STEPS):
        state = runs.fit(
            tmp_path / "run", of=runs.trainer(config=plan), callback=runs.at_step(stop)
        )
    assert runs.same_bits(state, unbroken)
    spent = Ledger.read(tmp_path / "run" / "released" / "ledger.jsonl").spent(1e-5)
    assert spent.epsilon == pytest.approx(plan.epsilon(delta=1e-5), rel=1e-3)
