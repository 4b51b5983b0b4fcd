"""Equinox modules, against a loop over single examples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from framework_checks import assert_close, plan, slow_clipped_sum, step_on_all_data
from framework_models import (
    KINDS,
    EquinoxConvolutional,
    batch_for,
    cross_entropy,
    equinox_model,
)
from framework_models import loss_of_rows as loss
from training_runs import at_step, options, same_bits

import bevel
from bevel.errors import FixArgumentsError, FixLossError
from bevel.frameworks import equinox as private
from bevel.sharding import make_mesh

KEY = jax.random.key(7)


def slow(model, batch, key, clip_norm, loss=loss):
    return slow_clipped_sum(
        jax.jit(lambda example, key: eqx.filter_grad(loss)(model, example, key)),
        batch,
        key,
        clip_norm,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_that_of_single_examples(kind):
    model, batch = equinox_model(kind), batch_for(kind)
    grads = private.clipped_grad(loss, l2_clip_norm=0.5)(model, batch, KEY)
    assert_close(grads, slow(model, batch, KEY, 0.5))
    floats = eqx.filter(model, eqx.is_inexact_array)
    assert jax.tree.structure(grads) == jax.tree.structure(floats)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_and_microbatches_change_nothing(kind):
    model, batch = equinox_model(kind), batch_for(kind)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(batch, jax.NamedSharding(mesh, jax.P("data")))
    options = {"l2_clip_norm": 0.5}
    one = private.clipped_grad(loss, **options)(model, batch, KEY)
    many = private.clipped_grad(loss, **options)(model, spread, KEY)
    parts = private.clipped_grad(loss, microbatch_size=2, **options)(model, batch, KEY)
    assert_close(many, one, 1e-5)
    assert_close(parts, one, 1e-5)


def test_every_example_has_its_own_dropout_mask():
    def loss(model, batch, key):
        kept = model.dropout(jnp.ones(64), key=key) != 0
        return model.head.bias.sum() * batch["x"].mean(), kept

    grad_fn = private.clipped_grad(loss, True, l2_clip_norm=0.5)
    masks = grad_fn(equinox_model("cnn"), batch_for("cnn", 4), key=KEY)[1].aux
    assert len(np.unique(masks, axis=0)) == 4


def test_a_loop_of_ones_own_inside_jit():
    model, batch = equinox_model("cnn"), batch_for("cnn")
    optimizer, grad_fn = optax.adam(1e-2), private.clipped_grad(loss, l2_clip_norm=0.5)
    privatizer = bevel.gaussian_privatizer(stddev=grad_fn.sensitivity(), prng_key=KEY)

    @eqx.filter_jit
    def step(model, opt_state, noise_state, batch, key):
        noised, noise_state = privatizer.update(grad_fn(model, batch, key), noise_state)
        updates, opt_state = optimizer.update(noised, opt_state)
        return eqx.apply_updates(model, updates), opt_state, noise_state

    params = eqx.filter(model, eqx.is_inexact_array)
    new, *_ = step(model, optimizer.init(params), privatizer.init(params), batch, KEY)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert not np.array_equal(new.head.weight, model.head.weight)


def test_eager_calls_with_one_structure_are_traced_once():
    traced = []

    def counted(model, batch, key):
        traced.append(1)
        return loss(model, batch, key)

    grad_fn = private.clipped_grad(counted, l2_clip_norm=0.5)
    model, batch = equinox_model("cnn"), batch_for("cnn")
    grad_fn(model, batch, KEY)
    before = len(traced)
    grad_fn(eqx.apply_updates(model, grad_fn(model, batch, KEY)), batch, KEY)
    assert len(traced) == before


def test_a_tree_of_booleans_selects_what_is_trained():
    model, batch = equinox_model("cnn"), batch_for("cnn")
    nothing = jax.tree.map(lambda _: False, model)
    head = eqx.tree_at(lambda m: m.head, nothing, True)
    grads = private.clipped_grad(loss, l2_clip_norm=0.5, trainable=head)(model, batch, KEY)
    assert grads.conv.weight is None

    @jax.jit
    def slow_grad(example, key):
        trained, rest = eqx.partition(model, head)
        return jax.grad(lambda p: loss(eqx.combine(p, rest), example, key))(trained)

    assert_close(grads, slow_clipped_sum(slow_grad, batch, KEY, 0.5))
    with pytest.raises(FixArgumentsError, match="selects no floating-point array"):
        private.clipped_grad(loss, l2_clip_norm=0.5, trainable=nothing)(model, batch, KEY)


def make_with_batch_norm(key):
    norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
    return EquinoxConvolutional(key, norm)


def loss_with_state(model, batch, key, state):
    keys = jax.random.split(key, len(batch["y"]))
    run = jax.vmap(model, axis_name="batch", in_axes=(0, 0, None), out_axes=(0, None))
    logits, state = run(batch["x"], keys, state)
    return cross_entropy(logits, batch["y"]), state


def test_batch_normalization_is_refused_in_training_and_works_in_inference_mode():
    model, state = eqx.nn.make_with_state(make_with_batch_norm)(jax.random.key(0))
    batch = batch_for("cnn")
    grad_fn = private.clipped_grad(loss_with_state, True, l2_clip_norm=0.5, state=state)
    with pytest.raises(FixLossError, match="released without noise"):
        grad_fn(model, batch, KEY)
    frozen = eqx.tree_at(lambda m: m.norm.inference, model, True)
    grads, aux = grad_fn(frozen, batch, KEY)
    assert aux.aux is None

    def only_loss(model, batch, key):
        return loss_with_state(model, batch, key, state)[0]

    assert_close(grads, slow(frozen, batch, KEY, 0.5, only_loss))


def test_a_state_that_depends_on_the_data_is_refused():
    class Mean(eqx.Module):
        weight: jax.Array
        mean: eqx.nn.StateIndex

        def __init__(self):
            self.weight, self.mean = jnp.ones(3), eqx.nn.StateIndex(jnp.zeros(3))

    def loss(model, x, state):
        new = state.set(model.mean, 0.9 * state.get(model.mean) + 0.1 * x.mean(0))
        return (model.weight * x).sum(), new

    model, state = eqx.nn.make_with_state(Mean)()
    grad_fn = private.clipped_grad(loss, True, l2_clip_norm=0.5, state=state)
    with pytest.raises(FixLossError, match=r"changes state.*released without noise"):
        grad_fn(model, jnp.ones((2, 3)))


def test_mistakes_of_the_first_day_have_clear_errors():
    model, batch = equinox_model("cnn"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    with pytest.raises(FixArgumentsError, match=r"takes a key, but none was given"):
        grad_fn(model, batch)
    with pytest.raises(FixArgumentsError, match=r"one batch: grad_fn\(model, \(x, y\), key\)"):
        grad_fn(model, batch["x"], batch["y"], KEY)
    with pytest.raises(FixLossError, match=r"\(model, x, y\).*loss\(model, \(x, y\)\)"):
        private.clipped_grad(lambda model, x, y: 0.0, l2_clip_norm=0.5)(model, batch, KEY)
    with pytest.raises(FixLossError, match="pass has_aux=True"):
        with_aux = lambda model, batch, key: (loss(model, batch, key), batch["y"])  # noqa: E731
        private.clipped_grad(with_aux, l2_clip_norm=0.5)(model, batch, KEY)
    _, state = eqx.nn.make_with_state(make_with_batch_norm)(jax.random.key(0))
    with pytest.raises(FixArgumentsError, match="pass it as state=state"):
        grad_fn((model, state), batch, KEY)
    with pytest.raises(FixLossError, match=r"requires a key.*Give the loss a parameter `key`"):
        without_key = lambda model, batch: jax.vmap(model)(batch["x"]).mean()  # noqa: E731
        private.clipped_grad(without_key, l2_clip_norm=0.5)(model, batch, KEY)
    with pytest.raises(FixArgumentsError, match=r"trainable contains '\*weight': pass a function"):
        private.clipped_grad(loss, l2_clip_norm=0.5, trainable="*weight")(model, batch, KEY)
    with pytest.raises(FixArgumentsError, match="is the class Linear: pass an instance"):
        grad_fn(eqx.nn.Linear, batch, KEY)


def test_training_returns_the_module_and_changes_nothing_else():
    model, state = eqx.nn.make_with_state(make_with_batch_norm)(jax.random.key(0))
    model, data = eqx.nn.inference_mode(model), batch_for("cnn", 16)
    run = {"config": step_on_all_data(), "optimizer": optax.sgd(1.0), "options": options()}
    new = private.fit(model, loss_with_state, data, state=state, **run)

    def only_loss(model, batch, key):
        return loss_with_state(model, batch, key, state)[0]

    total = slow(model, data, KEY, 1.0, only_loss)
    floats = [eqx.filter(m, eqx.is_inexact_array) for m in (model, new)]
    moved = jax.tree.map(jnp.subtract, *floats)
    assert_close(moved, jax.tree.map(lambda x: x / 16, total), 1e-2)
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert new.activation is model.activation and new.scale == model.scale and new.bias is None


def test_what_is_not_trained_is_returned_as_it_was():
    model, data = equinox_model("cnn"), batch_for("cnn", 16)
    head = eqx.tree_at(lambda m: m.head, jax.tree.map(lambda _: False, model), True)
    run = {"config": plan(1), "optimizer": optax.adam(0.1), "options": options()}
    new = private.fit(model, loss, data, trainable=head, **run)
    assert new.conv.weight is model.conv.weight
    assert not np.array_equal(new.head.weight, model.head.weight)


def test_a_run_in_a_folder_resumes_and_evaluates_models(tmp_path):
    data, evaluated = batch_for("cnn", 16), []

    def evaluate(model):
        evaluated.append(model)
        return {"loss": float(loss(eqx.nn.inference_mode(model), data, KEY))}

    def train(folder, **changed):
        run = {"config": plan(), "optimizer": optax.adam(1e-2), "options": options()}
        model = equinox_model("cnn")
        return private.fit(model, loss, data, folder=folder, evaluate=evaluate, **run, **changed)

    whole = train(tmp_path / "whole")
    stopped = train(tmp_path / "halved", callback=at_step(2))
    resumed = train(tmp_path / "halved")
    assert len(evaluated) == 4
    arrays = [eqx.filter(model, eqx.is_array) for model in (whole, resumed, stopped)]
    assert same_bits(arrays[0], arrays[1]) and not same_bits(arrays[0], arrays[2])


@pytest.mark.full
def test_a_run_on_a_mesh_gives_the_same_model():
    data, models = batch_for("transformer", 16), []
    for mesh in (None, make_mesh({"data": 8})):
        run = {"config": plan(2), "optimizer": optax.sgd(0.1), "options": options()}
        run |= {"mesh": mesh, "ema_decay": 0.9}
        models.append(private.fit(equinox_model("transformer"), loss, data, **run))
    assert_close(*(eqx.filter(model, eqx.is_array) for model in models), 1e-5)
