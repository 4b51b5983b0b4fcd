"""Flax NNX models, against a loop over single examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from framework_checks import assert_close, plan, slow_clipped_sum, step_on_all_data
from framework_models import KINDS, NNXConvolutional, batch_for, loss, nnx_model
from training_runs import at_step, options, same_bits

import bevel
from bevel.errors import FixArgumentsError, FixLossError
from bevel.frameworks import nnx as private
from bevel.sharding import make_mesh
from bevel.training import load

KEY = jax.random.key(7)


def reseeded(model, key):
    """A copy of the model whose i-th random stream starts from the key folded with i."""
    graph, streams, rest = nnx.split(model, nnx.RngState, ...)
    leaves, treedef = jax.tree.flatten(streams)
    fresh = [
        jax.random.fold_in(key, i)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else jnp.zeros_like(x)
        for i, x in enumerate(leaves)
    ]
    return nnx.merge(graph, jax.tree.unflatten(treedef, fresh), rest)


def slow(model, batch, key, clip_norm, wrt=0):
    @nnx.jit
    def grad(model, example, key):
        return nnx.grad(loss, argnums=wrt)(reseeded(model, key), example)

    return slow_clipped_sum(functools.partial(grad, model), batch, key, clip_norm)


@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_is_that_of_single_examples(kind):
    model, batch = nnx_model(kind), batch_for(kind)
    grads = private.clipped_grad(loss, l2_clip_norm=0.5)(model, batch, KEY)
    assert_close(grads, slow(model, batch, KEY, 0.5))
    assert jax.tree.structure(grads) == jax.tree.structure(nnx.state(model, nnx.Param))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_and_microbatches_change_nothing(kind):
    model, batch = nnx_model(kind), batch_for(kind)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(batch, jax.NamedSharding(mesh, jax.P("data")))
    options = {"l2_clip_norm": 0.5}
    one = private.clipped_grad(loss, **options)(model, batch, KEY)
    many = private.clipped_grad(loss, **options)(model, spread, KEY)
    parts = private.clipped_grad(loss, microbatch_size=2, **options)(model, batch, KEY)
    assert_close(many, one, 1e-5)
    assert_close(parts, one, 1e-5)


def test_every_example_has_its_own_dropout_mask():
    def loss(model, batch):
        kept = model.dropout(jnp.ones((1, 64))) != 0
        return model.head.bias.sum() * batch["x"].mean(), kept

    model, batch = nnx_model("cnn"), batch_for("cnn", 4)
    grad_fn = private.clipped_grad(loss, True, l2_clip_norm=0.5)
    masks = grad_fn(model, batch, KEY)[1].aux[:, 0]
    assert len(np.unique(masks, axis=0)) == 4
    again = grad_fn(model, batch, KEY)[1].aux[:, 0]
    np.testing.assert_array_equal(masks, again)


def test_without_a_key_the_random_streams_of_the_model_advance():
    model, batch = nnx_model("cnn"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    first, second = grad_fn(model, batch), grad_fn(model, batch)
    assert int(model.dropout.rngs.count[...]) == 2
    assert not np.array_equal(first.head.kernel[...], second.head.kernel[...])
    again = grad_fn(nnx_model("cnn"), batch)
    np.testing.assert_array_equal(first.head.kernel[...], again.head.kernel[...])


def test_a_loop_of_ones_own_inside_jit():
    model, batch = nnx_model("cnn"), batch_for("cnn")
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    privatizer = bevel.gaussian_privatizer(stddev=grad_fn.sensitivity(), prng_key=KEY)

    @nnx.jit
    def step(model, optimizer, noise_state, batch):
        noised, noise_state = privatizer.update(grad_fn(model, batch), noise_state)
        optimizer.update(model, noised)
        return noise_state

    before = nnx.clone(model)
    noise_state = privatizer.init(nnx.state(model, nnx.Param))
    for _ in range(2):
        noise_state = step(model, optimizer, noise_state, batch)
    assert int(model.dropout.rngs.count[...]) == 2
    assert not np.array_equal(before.head.kernel[...], model.head.kernel[...])


def test_a_filter_selects_what_is_trained():
    model, batch = nnx_model("transformer"), batch_for("transformer")
    head = nnx.All(nnx.Param, nnx.PathContains("head"))
    grads = private.clipped_grad(loss, l2_clip_norm=0.5, trainable=head)(model, batch, KEY)
    assert list(grads) == ["head"]

    assert_close(grads, slow(model, batch, KEY, 0.5, nnx.DiffState(0, head)))
    with pytest.raises(FixArgumentsError, match=r"matches none of the model's Variables.*Param"):
        private.clipped_grad(loss, l2_clip_norm=0.5, trainable=nnx.LoRAParam)(model, batch, KEY)


def test_batch_normalization_is_refused_in_training_and_works_with_running_averages():
    model, batch = NNXConvolutional(nnx.Rngs(0), norm="batch"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    with pytest.raises(
        FixLossError, match=r"changes norm/mean.*released without noise(.|\n)*Group"
    ):
        grad_fn(model, batch, KEY)
    model.norm.use_running_average = True
    assert_close(grad_fn(model, batch, KEY), slow(model, batch, KEY, 0.5))


class Counting(nnx.Module):
    """Counts its calls, keeps activations, and recomputes its layer in the backward pass."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 2, rngs=rngs)
        self.offset = nnx.Variable(jnp.ones(2))
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        out = nnx.remat(lambda model, x: model.linear(x) + model.offset[...])(self, x)
        self.out = nnx.Intermediate(out)
        return out


def test_changes_that_do_not_depend_on_data_are_dropped():
    model, x = Counting(nnx.Rngs(0)), jnp.ones((4, 4))
    grads = private.clipped_grad(lambda model, x: model(x).sum(), l2_clip_norm=0.5)(model, x)
    assert list(grads) == ["linear"] and int(model.calls[...]) == 0
    assert not hasattr(model, "out")


def test_layers_with_split_streams_have_their_own_masks():
    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=0, out_axes=0)
    def layers(rngs):
        return nnx.Dropout(0.5, rngs=rngs)

    class Stacked(nnx.Module):
        def __init__(self, rngs):
            self.w = nnx.Param(jnp.ones(64))
            self.layers = layers(rngs)

        def __call__(self, x):
            run = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None), out_axes=0)
            return run(self.layers, x * self.w[...])

    def loss(model, x):
        out = model(x)
        return out.sum(), out != 0

    x = jnp.ones((3, 64))
    grad_fn = private.clipped_grad(loss, True, l2_clip_norm=0.5)
    masks = grad_fn(Stacked(nnx.Rngs(0)), x, KEY)[1].aux.reshape(6, 64)
    assert len(np.unique(masks, axis=0)) == 6


def test_mistakes_of_the_first_day_have_clear_errors():
    model, batch = nnx_model("cnn"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    with pytest.raises(FixArgumentsError, match=r"one batch: grad_fn\(model, \(x, y\), key\)"):
        grad_fn(model, batch["x"], batch["y"])
    with pytest.raises(FixArgumentsError, match=r"is a State: pass an nnx\.Module"):
        grad_fn(nnx.state(model), batch)
    with pytest.raises(FixLossError, match="does not depend on the trained parameters"):
        model.eval()
        outside = lambda _, batch: loss(model, batch)  # noqa: E731
        private.clipped_grad(outside, l2_clip_norm=0.5)(nnx_model("cnn"), batch, KEY)
    with pytest.raises(FixLossError, match="Use the model that is passed to the loss"):
        model.train()  # dropout counts its masks
        private.clipped_grad(outside, l2_clip_norm=0.5)(nnx_model("cnn"), batch, KEY)


def test_training_writes_the_parameters_back_and_changes_nothing_else():
    model, data = NNXConvolutional(nnx.Rngs(0), norm="batch"), batch_for("cnn", 16)
    model.eval()
    before = nnx.clone(model)
    run = {"config": step_on_all_data(), "optimizer": optax.sgd(1.0), "options": options()}
    state = private.fit(model, loss, data, **run)
    total = slow(before, data, KEY, 1.0)
    moved = jax.tree.map(jnp.subtract, nnx.state(before, nnx.Param), nnx.state(model, nnx.Param))
    assert_close(moved, jax.tree.map(lambda x: x / 16, total), 1e-2)
    rest = nnx.Not(nnx.Param)
    assert same_bits(key_data(nnx.state(model, rest)), key_data(nnx.state(before, rest)))
    assert int(state.step) == 1


def key_data(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def test_a_run_in_a_folder_resumes_and_evaluates_models(tmp_path):
    data, evaluated = batch_for("cnn", 16), []

    def evaluate(model):
        model.eval()
        evaluated.append(model)
        return {"loss": float(loss(model, data))}

    def train(folder, **changed):
        model = nnx_model("cnn")
        run = {"config": plan(), "optimizer": optax.adam(1e-2), "options": options()}
        private.fit(model, loss, data, folder=folder, evaluate=evaluate, **run, **changed)
        return model

    whole = train(tmp_path / "whole")
    stopped = train(tmp_path / "halved", callback=at_step(2))
    resumed = train(tmp_path / "halved")
    assert len(evaluated) == 4 and evaluated[0] is not whole
    trained = lambda model: nnx.state(model, nnx.Param)  # noqa: E731
    assert same_bits(trained(whole), trained(resumed))
    parts = private.functional(nnx_model("cnn"), loss)
    loaded = parts.merge(load(tmp_path / "halved", like=parts.params).params)
    assert same_bits(trained(loaded), trained(resumed))
    assert not same_bits(trained(whole), trained(stopped))


def test_a_run_on_a_mesh_gives_the_same_model():
    data, models = batch_for("transformer", 16), []
    for mesh in (None, make_mesh({"data": 8})):
        models.append(nnx_model("transformer"))
        run = {"config": plan(2), "optimizer": optax.sgd(0.1), "options": options()}
        private.fit(models[-1], loss, data, mesh=mesh, ema_decay=0.9, **run)
    assert_close(*(nnx.state(model, nnx.Param) for model in models), 1e-5)


def test_parts_are_merged_into_a_new_model():
    model = nnx_model("cnn")
    parts = private.functional(model, loss)
    doubled = parts.merge(jax.tree.map(lambda x: 2 * x, parts.params))
    assert same_bits(doubled.head.kernel[...], 2 * model.head.kernel[...])
    assert not jax.tree.leaves(parts.model_state)  # the random streams are no part of it
