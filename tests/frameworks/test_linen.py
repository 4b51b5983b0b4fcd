"""Flax Linen models, against a loop over single examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.training.train_state import TrainState
from framework_checks import assert_close, plan, slow_clipped_sum, step_on_all_data
from framework_models import KINDS, batch_for, cross_entropy, linen_state, loss
from training_runs import at_step, options, same_bits

import bevel
from bevel.errors import FixArgumentsError, FixLossError
from bevel.frameworks import linen as private
from bevel.sharding import make_mesh

KEY = jax.random.key(7)


def slow(state, batch, key, clip_norm):
    variables = {} if state.batch_stats is None else {"batch_stats": state.batch_stats}

    @jax.jit
    def grad(example, key):
        def loss(params):
            rngs = {"dropout": jax.random.fold_in(key, 0)}
            logits = state.apply_fn({"params": params, **variables}, example["x"], rngs=rngs)
            return cross_entropy(logits, example["y"])

        return jax.grad(loss)(state.params)

    return slow_clipped_sum(grad, batch, key, clip_norm)


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_that_of_single_examples(kind):
    state, batch = linen_state(kind), batch_for(kind)
    grads = private.clipped_grad(loss, l2_clip_norm=0.5)(state, batch, KEY)
    assert_close(grads, slow(state, batch, KEY, 0.5))
    assert jax.tree.structure(grads) == jax.tree.structure(state.params)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_and_microbatches_change_nothing(kind):
    state, batch = linen_state(kind), batch_for(kind)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(batch, jax.NamedSharding(mesh, jax.P("data")))
    options = {"l2_clip_norm": 0.5}
    one = private.clipped_grad(loss, **options)(state, batch, KEY)
    many = private.clipped_grad(loss, **options)(state, spread, KEY)
    parts = private.clipped_grad(loss, microbatch_size=2, **options)(state, batch, KEY)
    assert_close(many, one, 1e-5)
    assert_close(parts, one, 1e-5)


class Masks(nn.Module):
    @nn.compact
    def __call__(self, x):
        ones = jnp.ones((1, 64))
        noise = jax.random.bernoulli(self.make_rng("noise"), 0.5, (1, 64))
        out = nn.Dense(1)(x)
        return out, nn.Dropout(0.5, deterministic=False)(ones) != 0, noise


def test_every_example_and_stream_has_its_own_mask():
    model, x = Masks(), jnp.ones((3, 2))
    keys = {"params": KEY, "dropout": KEY, "noise": KEY}
    params = model.init(keys, x)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))

    def loss(model, x):
        out, *masks = model(x)
        return out.sum(), masks

    grad_fn = private.clipped_grad(loss, True, l2_clip_norm=1.0, rngs=("dropout", "noise"))
    dropout, noise = grad_fn(state, x, KEY)[1].aux
    masks = np.concatenate([dropout, noise]).reshape(6, 64)
    assert len(np.unique(masks, axis=0)) == 6


def test_a_loop_of_ones_own_inside_jit():
    state, batch = linen_state("cnn", tx=optax.adam(1e-2)), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    privatizer = bevel.gaussian_privatizer(stddev=grad_fn.sensitivity(), prng_key=KEY)

    @jax.jit
    def step(state, noise_state, batch, key):
        noised, noise_state = privatizer.update(grad_fn(state, batch, key), noise_state)
        return state.apply_gradients(grads=noised), noise_state

    new, _ = step(state, privatizer.init(state.params), batch, KEY)
    assert int(new.step) == 1
    assert not np.array_equal(new.params["Dense_0"]["bias"], state.params["Dense_0"]["bias"])


def test_batch_normalization_is_refused_in_training_and_works_with_running_averages():
    batch, grad_fn = batch_for("cnn"), private.clipped_grad(loss, l2_clip_norm=0.5)
    training = linen_state("cnn", norm="batch", running=False)
    with pytest.raises(FixLossError, match=r"batch_stats(.|\n)*released without noise"):
        grad_fn(training, batch, KEY)
    mutable = lambda model, batch: (  # noqa: E731
        model(batch["x"], mutable=["batch_stats"])[0].sum()
    )
    with pytest.raises(FixLossError, match=r"mutable=\['batch_stats'\].*GroupNorm"):
        private.clipped_grad(mutable, l2_clip_norm=0.5)(training, batch, KEY)
    state = linen_state("cnn", norm="batch")
    assert_close(grad_fn(state, batch, KEY), slow(state, batch, KEY, 0.5))


def test_collections_that_are_not_of_the_model_may_be_mutable():
    def with_intermediates(model, batch):
        logits, kept = model(batch["x"], mutable=["intermediates"])
        return cross_entropy(logits, batch["y"]), kept

    state, batch = linen_state("cnn"), batch_for("cnn")
    grads, _ = private.clipped_grad(with_intermediates, True, l2_clip_norm=0.5)(state, batch, KEY)
    assert_close(grads, slow(state, batch, KEY, 0.5))


def test_mistakes_of_the_first_day_have_clear_errors():
    state, batch = linen_state("cnn"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    with pytest.raises(FixArgumentsError, match=r"is a dict: pass TrainState\.create"):
        grad_fn(state.params, batch, KEY)
    with pytest.raises(FixArgumentsError, match=r"params=variables\['params'\]"):
        grad_fn(state.replace(params={"params": state.params}), batch, KEY)
    with pytest.raises(FixLossError, match=r'PRNG for "dropout".*grad_fn\(train_state, batch, key'):
        grad_fn(state, batch)
    with pytest.raises(FixLossError, match=r"rngs=\('noise',\) lacks this one"):
        private.clipped_grad(loss, l2_clip_norm=0.5, rngs=("noise",))(state, batch, KEY)
    fit = functools.partial(private.fit, config=plan())
    with pytest.raises(FixArgumentsError, match=r"is a Dense: pass TrainState\.create"):
        fit(nn.Dense(2), loss, batch)
    with pytest.raises(FixArgumentsError, match="leave out optimizer: the TrainState has one"):
        fit(state, loss, batch, optimizer=optax.sgd(0.1))


def test_a_loss_written_for_parameters_or_a_train_state_is_explained():
    state, batch = linen_state("cnn"), batch_for("cnn")
    for old in (
        lambda params, batch: state.apply_fn({"params": params}, batch["x"]).mean(),
        lambda state, batch: state.apply_fn({"params": state.params}, batch["x"]).mean(),
    ):
        with pytest.raises(FixLossError, match=r"stands for apply_fn.*Call it as model\(x\)"):
            private.clipped_grad(old, l2_clip_norm=0.5)(state, batch, KEY)


def test_variables_that_are_missing_are_asked_for():
    model, batch = nn.BatchNorm(use_running_average=True), batch_for("cnn")
    params = model.init(KEY, batch["x"])["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))
    with pytest.raises(FixLossError, match=r"batch_stats.*Pass the variables.*collections="):
        mean = lambda model, batch: model(batch["x"]).mean()  # noqa: E731
        private.clipped_grad(mean, l2_clip_norm=0.5)(state, batch)


def test_training_returns_the_train_state():
    state, data = linen_state("cnn", norm="batch", tx=optax.sgd(1.0)), batch_for("cnn", 16)

    def without_dropout(model, batch):
        return cross_entropy(model(batch["x"], train=False), batch["y"])

    new = private.fit(state, without_dropout, data, config=step_on_all_data(), options=options())
    quiet = state.replace(apply_fn=functools.partial(state.apply_fn, train=False))
    total = slow(quiet, data, KEY, 1.0)
    moved = jax.tree.map(jnp.subtract, state.params, new.params)
    assert_close(moved, jax.tree.map(lambda x: x / 16, total), 1e-2)
    assert new.step == 1 and same_bits(new.batch_stats, state.batch_stats)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    with pytest.raises(FixArgumentsError, match="has taken 1 steps"):
        private.fit(new, without_dropout, data, config=step_on_all_data())


def test_patterns_select_what_is_trained():
    state, data = linen_state("cnn"), batch_for("cnn", 16)
    new = private.fit(state, loss, data, config=plan(1), trainable="Dense*", options=options())
    same = {name: same_bits(new.params[name], state.params[name]) for name in state.params}
    assert same == {"Conv_0": True, "GroupNorm_0": True, "Dense_0": False}


def test_a_run_in_a_folder_resumes_and_evaluates_models(tmp_path):
    data, evaluated = batch_for("cnn", 16), []

    def evaluate(model):
        evaluated.append(model)
        return {"loss": float(cross_entropy(model(data["x"], train=False), data["y"]))}

    def train(folder, **changed):
        run = {"config": plan(), "options": options(), "evaluate": evaluate} | changed
        state = linen_state("cnn", tx=optax.adam(1e-2))
        return private.fit(state, loss, data, folder=folder, **run)

    whole = train(tmp_path / "whole")
    stopped = train(tmp_path / "halved", callback=at_step(2))
    resumed = train(tmp_path / "halved")
    assert len(evaluated) == 4 and stopped.step == 2
    assert same_bits(whole, resumed) and not same_bits(whole.params, stopped.params)


@pytest.mark.full
def test_a_run_on_a_mesh_gives_the_same_model():
    data, states = batch_for("transformer", 16), []
    for mesh in (None, make_mesh({"data": 8})):
        run = {"config": plan(2), "options": options(), "mesh": mesh, "ema_decay": 0.9}
        states.append(private.fit(linen_state("transformer"), loss, data, **run))
    assert_close(states[1].params, states[0].params, 1e-5)


def test_parts_are_merged_into_a_function():
    state, batch = linen_state("cnn", norm="batch"), batch_for("cnn")
    parts = private.functional(state, loss)
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    logits = parts.merge(state.params)(batch["x"], train=False)
    assert same_bits(logits, state.apply_fn(variables, batch["x"], train=False))
