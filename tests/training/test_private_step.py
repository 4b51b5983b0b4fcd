"""One step: its parts, one after the other, are the step. What it needs in memory."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_close
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.bounded import Aux
from bevel.errors import FixLossError
from bevel.execution_plan import PlanSecrets
from bevel.training import Augmentation, Trainer
from bevel.training.private_step import PrivateStep

PARAMS = {"w": np.ones((3, 2), np.float32), "frozen": np.full((2,), 2.0, np.float32)}
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def loss(params, data, prng):
    del prng
    return jnp.mean((data @ params["w"] + params["frozen"][None]) ** 2), {}


def trainer(**options):
    config = bevel.DPSGDConfig(
        noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=4
    )
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    return Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(0.1), **options)


def taken(one, state):
    keys = jax.random.key(1), one.plan.secrets.noise_key
    return one.step(state, (X, None), jnp.zeros(4, bool), *keys)


def test_a_step_is_clip_then_noise_then_update():
    one = trainer()
    state = one.init(PARAMS)
    new, _, sums = taken(one, state)
    clipped, _ = one.step.clip(state, (X, None), jnp.zeros(4, bool), jax.random.key(1))
    noised, _ = one.step.add_noise(clipped, state, one.plan.secrets.noise_key)
    params, _ = one.step.update(noised, state)
    assert_close(sums, clipped, 1e-6)
    assert_close(new.params, params, 1e-6)
    assert int(new.step) == 1
    assert not np.allclose(noised["w"], clipped["w"])


def test_frozen_parameters_have_no_gradient_and_do_not_move():
    one = trainer(trainable=["w"])
    new, _, sums = taken(one, one.init(PARAMS))
    assert jax.tree.leaves(sums)[0].shape == (3, 2) and len(jax.tree.leaves(sums)) == 1
    np.testing.assert_array_equal(new.params["frozen"], PARAMS["frozen"])
    assert not np.array_equal(new.params["w"], PARAMS["w"])


def test_the_average_moves_towards_the_new_parameters():
    one = trainer(ema_decay=0.9)
    state = one.init(PARAMS)
    new, _, _ = taken(one, state)
    expected = jax.tree.map(lambda a, b: a + 0.9 * (b - a), state.average, new.params)
    assert_close(new.average, expected, 1e-6)  # at step 0 the decay is 1 / 10


# Memory, as counted by the compiler: arguments, results and temporaries, without donated results.

ADAM = optax.adam(1e-3)
LAYERS = ("a", "b", "c")
WIDE = {"up": (512, 1024), "down": (1024, 512)}
FSDP_AND_TP = {"up": P("data", "model"), "down": P("model", "data")}


def network(params, data):
    for layer in LAYERS:
        data = data + jax.nn.relu(data @ params[layer]["up"]) @ params[layer]["down"]
    return jnp.mean(data**2)


def peak(program):
    memory = program.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return kept + memory.temp_size_in_bytes - memory.alias_size_in_bytes


@pytest.fixture
def standard_promotion():
    """Adam raises a Python float to the power of an integer array."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def placed(on_mesh):
    """Parameters, batch and padding, and the bytes of the local gradient."""
    params = {layer: {n: np.ones(s, np.float32) for n, s in WIDE.items()} for layer in LAYERS}
    batch, padding = np.ones((8, 8, 512), np.float32), np.zeros(8, bool)
    if on_mesh:
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        put = lambda spec, x: jax.device_put(x, NamedSharding(mesh, spec))  # noqa: E731
        params = {layer: jax.tree.map(put, FSDP_AND_TP, of) for layer, of in params.items()}
        batch, padding = put(P("data"), batch), put(P("data"), padding)
    else:
        params, batch, padding = jax.tree.map(jnp.asarray, (params, batch, padding))
    local = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(params))
    return params, batch, padding, local


def without_privacy(params, state, batch):
    updates, state = ADAM.update(jax.grad(network)(params, batch), state, params)
    return optax.apply_updates(params, updates), state


def private_peak(params, batch, padding):
    config = bevel.DPSGDConfig(
        noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=8
    )
    one = Trainer(
        config=config.make(secrets=PlanSecrets.for_tests(0)),
        loss_fn=lambda params, data, prng: (network(params, data), {}),
        optimizer=ADAM,
    )
    keys = {"noise": one.plan.secrets.noise_key, "loss": jax.random.key(1)}
    key_data = jax.tree.map(jax.random.key_data, keys)
    step = jax.jit(one.step.measured, donate_argnums=0)
    return peak(step.lower(one.init(params), (batch, None), padding, key_data).compile())


@pytest.mark.fast
@pytest.mark.parametrize("on_mesh", [False, True], ids=["one device", "mesh"])
def test_noise_and_update_need_no_second_gradient(on_mesh, monkeypatch, standard_promotion):
    params, batch, padding, _ = placed(on_mesh)
    plain = jax.jit(without_privacy, donate_argnums=(0, 1))
    expected = peak(plain.lower(params, ADAM.init(params), batch).compile())

    def gradient(self, state, batch, is_padding, key):
        """Takes the place of clipping, whose memory is not the subject here."""
        norms = jnp.sum(batch[0], axis=(1, 2))
        aux = Aux(values=norms, grad_norms=norms, aux={})
        return jax.grad(network)(state.params, batch[0]), aux

    monkeypatch.setattr(PrivateStep, "clip", gradient)
    assert private_peak(params, batch, padding) < 1.25 * expected


@pytest.mark.parametrize("on_mesh", [False, True], ids=["one device", "mesh"])
def test_a_step_needs_little_more_than_clipping(on_mesh, standard_promotion):
    params, batch, padding, local = placed(on_mesh)
    clipped = bevel.clipped_grad(network, l2_clip_norm=1.0)
    clipping = peak(jax.jit(clipped).lower(params, batch).compile())
    # Clipping holds the parameters and one gradient; Adam has two more arrays of their size.
    assert private_peak(params, batch, padding) < clipping + 2.5 * local
    if on_mesh:
        plain = jax.jit(without_privacy, donate_argnums=(0, 1))
        expected = peak(plain.lower(params, ADAM.init(params), batch).compile())
        assert private_peak(params, batch, padding) < 1.25 * expected


# A loss that couples examples.


def normed(params, data, prng):
    h = jnp.tanh(data @ params["w"])
    return jnp.mean((h - h.mean(0, keepdims=True)) ** 3) + params["frozen"].sum(), {}


def test_a_loss_that_couples_examples_is_refused_with_its_line():
    config = bevel.DPSGDConfig(
        noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=4
    )
    said = r"test_private_step.py:\d+.*GroupNorm.*allow_coupled_examples=True"
    made = {"config": config, "loss_fn": normed, "optimizer": optax.sgd(0.1)}
    views = Augmentation(lambda data, key: data, views=2)
    for options in ({}, {"trainable": ["w"]}, {"augmentation": views}, {"ema_decay": 0.9}):
        one = Trainer(**made, **options)
        with pytest.raises(FixLossError, match=said):
            taken(one, one.init(PARAMS))
        allowed = Trainer(**made, **options, allow_coupled_examples=True)
        taken(allowed, allowed.init(PARAMS))  # without a warning


def test_the_rows_of_users_are_searched_too():
    config = bevel.DPSGDConfig(
        noise_multiplier=1.0,
        iterations=5,
        num_examples=40,
        expected_batch_size=4,
        unit="user",
        examples_per_user_per_batch=2,
    )
    users = np.ones((4, 2, 3), np.float32), jnp.zeros((4, 2), bool)
    for loss_fn, allowed in ((normed, False), (normed, True), (loss, False)):
        one = Trainer(
            config=config,
            loss_fn=loss_fn,
            optimizer=optax.sgd(0.1),
            allow_coupled_examples=allowed,
        )
        keys = jax.random.key(1), one.plan.secrets.noise_key
        state = one.init(PARAMS)
        if loss_fn is normed and not allowed:
            with pytest.raises(FixLossError, match="couples examples"):
                one.step(state, users, jnp.zeros(4, bool), *keys)
        else:
            one.step(state, users, jnp.zeros(4, bool), *keys)


def test_a_step_traces_the_loss_once():
    calls = []

    def counted(params, data, prng):
        calls.append(data.shape)
        return loss(params, data, prng)

    config = bevel.DPSGDConfig(
        noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=4
    )
    one = Trainer(config=config, loss_fn=counted, optimizer=optax.sgd(0.1))
    taken(one, one.init(PARAMS))
    assert calls == [(1, 3)]


def test_dropout_with_the_same_mask_for_all_examples_warns_once():
    def masked(params, data, prng):
        mask = jax.random.bernoulli(params["key"], 0.5, data.shape)
        return loss(params, jnp.where(mask, data, 0.0), prng)

    def own(params, data, prng):
        mask = jax.random.bernoulli(prng, 0.5, data.shape)
        return loss(params, jnp.where(mask, data, 0.0), prng)

    params = PARAMS | {"key": jax.random.key(0)}
    for loss_fn, count in ((masked, 1), (own, 0)):
        config = bevel.DPSGDConfig(
            noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=4
        )
        one = Trainer(config=config, loss_fn=loss_fn, optimizer=optax.sgd(0.1), trainable=["w"])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            taken(one, one.init(params))
            taken(one, one.init(params))
        found = [str(w.message) for w in seen if "dropout" in str(w.message)]
        assert len(found) == count
        assert all("test_private_step.py" in text and "`prng`" in text for text in found)
