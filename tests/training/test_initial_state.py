"""Every array of a new state has memory of its own, and none is made twice."""

import gc
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import training_runs as runs
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.execution_plan import PerformanceFlags
from bevel.noise_addition import SupportedStrategies
from bevel.sharding import make_mesh
from bevel.training import initial_state

OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "momentum": optax.sgd(0.5, momentum=0.9),
    "factored": optax.adafactor(1e-2),
    "with a copy of the parameters": optax.contrib.schedule_free_sgd(0.1),
    "hyperparameters": optax.inject_hyperparams(optax.adam)(1e-2),
}
MESHES = {"no mesh": None, "data=8": "data=8", "data=2,fsdp=4": "data=2,fsdp=4"}
RULES = [("w", P("fsdp")), ("deep/w", P(None, "fsdp")), ("*", P())]
CONFIGS = {"independent": runs.config(), "BandMF": runs.BANDMF, "BLT": runs.BLT}


def params(dtype=jnp.float32):
    w = jnp.arange(64 * 32, dtype=dtype).reshape(64, 32)
    return {"w": w, "deep": {"w": w[:8] + 1, "b": jnp.ones(32, dtype)}}


def addresses(tree):
    leaves = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) and x.nbytes]
    shards = [s for x in leaves for s in x.addressable_shards]
    return [(s.device.id, s.data.unsafe_buffer_pointer()) for s in shards]


@pytest.mark.parametrize("least", [0, 2**24], ids=["in a program", "in Python"])
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_no_array_shares_memory_with_yours_or_with_another(optimizer, axes, least, monkeypatch):
    monkeypatch.setattr(initial_state, "WORTH_A_PROGRAM", least)
    mesh = axes and make_mesh(axes)
    twice = jnp.ones((64, 32))
    given = {"w": twice, "again": twice, "numpy": np.ones((64, 32), np.float32), "frozen": twice}
    if mesh:
        given["placed"] = jax.device_put(twice, NamedSharding(mesh, P()))
    trainer = runs.trainer(
        loss_fn=lambda params, model_state, data, prng: runs.loss(params, data, prng),
        optimizer=optimizer,
        mesh=mesh,
        ema_decay=0.9,
        trainable=lambda path: path != "frozen",
    )
    tables = {"a": twice, "b": np.zeros((64, 32), np.float32)}
    state = trainer.init(given, model_state=tables)
    own = addresses(state)
    assert len(set(own)) == len(own)
    assert not set(own) & set(addresses((given, tables)))
    numpy = [np.lib.array_utils.byte_bounds(x) for x in (given["numpy"], tables["b"])]
    assert not any(a <= start < b for a, b in numpy for _, start in own)
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    step(state)  # would raise if a buffer were there twice
    assert np.array_equal(twice, np.ones((64, 32))) and (given["numpy"] == 1).all()


@pytest.mark.parametrize("kinds", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_program_makes_what_python_makes(optimizer, dtype, config, axes, kinds, monkeypatch):
    mesh = axes and make_mesh(axes, axis_types=kinds)
    rules = RULES if axes == "data=2,fsdp=4" else "replicated"
    trainer = runs.trainer(config=config, optimizer=optimizer, mesh=mesh, rules=rules)
    same_in_a_program(trainer, params(dtype), monkeypatch)


def test_arithmetic_of_an_optimizer_is_rounded_as_in_python(monkeypatch):
    def weights(p):
        return jax.tree.map(lambda x: x * 0.37 + 0.1 * jnp.sin(x), p)

    optimizer = optax.GradientTransformation(weights, lambda g, s, p=None: (g, s))
    mesh = make_mesh("data=2,fsdp=4")
    trainer = runs.trainer(optimizer=optimizer, mesh=mesh, rules=RULES)
    same_in_a_program(trainer, params(), monkeypatch)


@pytest.mark.parametrize(
    "flags", [{"buffers_in": "host"}, {"intermediate_strategy": SupportedStrategies.ZERO}]
)
def test_noise_of_other_layouts_is_where_it_was_asked_for(flags, monkeypatch):
    flags, mesh = PerformanceFlags(**flags), make_mesh("data=2,fsdp=4")
    trainer = runs.trainer(config=runs.BANDMF, mesh=mesh, rules=RULES, performance_flags=flags)
    same_in_a_program(trainer, params(), monkeypatch)


def same_in_a_program(trainer, params, monkeypatch):
    slow = trainer.init(params)
    monkeypatch.setattr(initial_state, "WORTH_A_PROGRAM", 0)
    fast = trainer.init(params)
    assert jax.tree.structure(slow) == jax.tree.structure(fast)
    named = jax.tree_util.tree_leaves_with_path(slow)
    for (path, a), b in zip(named, jax.tree.leaves(fast), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (path, a.sharding, b.sharding)
        assert a.sharding.memory_kind == b.sharding.memory_kind, path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


@pytest.mark.parametrize("axes", [None, "data=2,fsdp=4"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_init_makes_no_array_that_is_not_in_the_state(dtype, config, axes, monkeypatch):
    monkeypatch.setattr(initial_state, "WORTH_A_PROGRAM", 0)
    mesh, large = axes and make_mesh(axes), []
    given = {"w": np.ones((512, 64), dtype), "deep": {"w": np.ones((64, 512), dtype)}}
    given["b"] = np.ones(64, dtype)
    trainer = runs.trainer(
        config=config,
        optimizer=OPTIMIZERS["adam"],
        mesh=mesh,
        rules=RULES if axes else "replicated",
    )
    real = initial_state.distinct

    def distinct(state):
        large.append(live_bytes())
        return real(state)

    monkeypatch.setattr("bevel.training.trainer.distinct", distinct)
    gc.collect()
    before = live_bytes()
    state = trainer.init(given)
    after = live_bytes()
    assert after - before <= 1.01 * bytes_on_devices(state)
    assert large[0] - before <= 1.01 * bytes_on_devices(state)


def live_bytes():
    return sum(bytes_on_devices(x) for x in jax.live_arrays())


def bytes_on_devices(tree):
    """Bytes over all devices. Looking at the shards would create more arrays."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize * len(x.devices())
        for x in jax.tree.leaves(tree)
    )
