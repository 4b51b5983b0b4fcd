"""Objects of frameworks where arrays are expected: the error names the adapter to use."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training_runs as runs

from bevel.errors import FixArgumentsError, FixLossError

eqx = pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")
nn = pytest.importorskip("flax.linen")
train_state = pytest.importorskip("flax.training.train_state")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(runs.D, rngs=rngs)
        self.linear = nnx.Linear(runs.D, 2, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.norm(x))


def linen_state():
    model = nn.Dense(2)
    params = model.init(jax.random.key(0), jnp.ones((1, runs.D)))["params"]
    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))


def refused(begin, said, **options):
    with pytest.raises(FixArgumentsError, match=said):
        runs.fit(begin=begin, **options)


def test_whole_models_are_refused_with_their_adapter():
    mlp = eqx.nn.MLP(runs.D, 2, 8, 1, key=jax.random.key(0))
    refused(mlp, r"Equinox module .*\(MLP\).*bevel.frameworks.equinox.*eqx.partition")
    refused({"model": mlp}, "bevel.frameworks.equinox")
    refused(linen_state(), r"Flax TrainState.*bevel.frameworks.linen.*state.params")
    refused(Net(nnx.Rngs(0)), r"NNX module .*\(Net\).*bevel.frameworks.nnx.*model_state")
    refused(nn.Dense(2), r"Linen module .*\(Dense\).*model.init")


def test_keras_models_are_recognised_by_name():
    layer = type("Layer", (), {"__module__": "keras.src.layers.layer"})
    refused({"model": type("Dense", (layer,), {})()}, "a Keras model.*bevel.keras_api")


def test_their_arrays_are_accepted():
    model = eqx.nn.Linear(runs.D, 2, key=jax.random.key(0))

    def of_module(model, batch, prng):
        return runs.loss({"w": model.weight.T, "b": model.bias}, batch, prng)

    state = runs.fit(of=runs.trainer(loss_fn=of_module), begin=eqx.filter(model, eqx.is_array))
    assert isinstance(state.params, eqx.nn.Linear)

    def of_dict(params, batch, prng):
        return runs.loss({"w": params["kernel"], "b": params["bias"]}, batch, prng)

    linear = nnx.Linear(runs.D, 2, rngs=nnx.Rngs(0))
    for begin in (linen_state().params, nnx.to_pure_dict(nnx.state(linear))):
        runs.fit(of=runs.trainer(loss_fn=of_dict), begin=begin, callback=runs.at_step(2))


def test_batch_statistics_are_not_trained():
    model = nn.BatchNorm(use_running_average=True)
    variables = model.init(jax.random.key(0), jnp.ones((1, runs.D)))

    def loss(params, batch, prng):
        scaled = model.apply(variables | {"params": params["params"]}, batch["x"])
        return scaled.mean(), {}

    trainer = runs.trainer(loss_fn=loss)
    refused(variables, r"batch_stats/mean' is a batch statistic.*model_state", of=trainer)
    runs.fit(
        of=runs.trainer(loss_fn=loss, trainable="params/*"),
        begin=variables,
        callback=runs.at_step(2),
    )


def test_other_leaves_are_named():
    refused({"w": jnp.ones(2), "act": jnp.tanh}, r"contains a \w+ at 'act'.*Close over")
    refused({}, "params has no arrays")
    with pytest.raises(FixArgumentsError, match="params has no arrays"):
        runs.trainer().fit(runs.data(), None)
    refused(runs.params() | {"n": jnp.int32(3)}, r"'n' has dtype int32.*trainable=")
    refused(runs.params() | {"k": jax.random.key(3)}, r"'k' has dtype key.*trainable=")


# State that the loss closes over.

NET = Net(nnx.Rngs(0))
LINEAR = nnx.Linear(runs.D, 2, rngs=nnx.Rngs(0))


def changes_a_global(params, batch, prng):
    return NET(batch["x"]).mean(), {}


def updates_a_global(params, batch, prng):
    nnx.update(LINEAR, params)
    return LINEAR(batch["x"]).mean(), {}


def closes_over_the_rest():
    graph, _, rest = nnx.split(NET, nnx.Param, ...)
    return lambda params, batch, prng: (nnx.merge(graph, params, rest)(batch["x"]).mean(), {})


def of_argument(model, params, batch, prng):
    return model(batch["x"]).mean(), {}


@pytest.mark.parametrize(
    "loss, model, named",
    [
        (changes_a_global, NET, "NET"),
        (updates_a_global, LINEAR, "LINEAR"),
        (closes_over_the_rest(), NET, "rest"),
        (functools.partial(of_argument, NET), NET, "argument 0"),
    ],
    ids=["module", "update", "rest", "partial"],
)
def test_state_that_is_closed_over_and_changed_is_named(loss, model, named):
    said = rf"closes over \({named}\).*bevel.frameworks.nnx"
    with pytest.raises(FixLossError, match=said):
        runs.fit(of=runs.trainer(loss_fn=loss), begin=nnx.state(model, nnx.Param))


def test_a_loss_that_ignores_its_parameters_is_refused():
    for loss, said in [
        (lambda p, d, k: (LINEAR(d["x"]).mean(), {}), r"NNX state \(LINEAR\).*bevel.frameworks"),
        (lambda p, d, k: (d["x"].mean(), {}), "Compute it from its first argument"),
    ]:
        with pytest.raises(FixLossError, match=rf"does not depend on any.*{said}"):
            runs.fit(of=runs.trainer(loss_fn=loss))


def test_a_frozen_model_may_be_closed_over():
    def distilled(params, batch, prng):
        teacher = LINEAR(batch["x"])
        student = batch["x"] @ params["w"] + params["b"][None]
        return ((teacher - student) ** 2).mean(), {}

    state = runs.fit(of=runs.trainer(loss_fn=distilled), callback=runs.at_step(2))
    assert np.asarray(state.params["w"]).any()


def test_no_framework_is_imported():
    program = "import bevel.training.trainer, sys; print([m for m in sys.modules if m.split('.')[0]"
    program += " in ('flax', 'equinox', 'keras')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
