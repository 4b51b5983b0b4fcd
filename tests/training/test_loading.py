"""`load` reads what was released, and nothing else."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import training_runs as runs

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training import load


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = runs.options(settings={"rate": 0.5}, delta=1e-5)
    state = runs.fit(folder, options=options, evaluate=lambda params: {"accuracy": 0.75})
    return folder, state


def test_the_last_parameters_and_the_settings(finished):
    folder, state = finished
    run = load(folder)
    assert runs.same_bits(run.params, state.params) and not run.is_average
    assert runs.same_bits(run.last_params, state.params)
    assert run.step == runs.STEPS and run.record["ending"] == "complete"
    assert run.settings["rate"] == 0.5 and run.settings["plan.mechanism.noise_multiplier"] == 1.0
    assert run.metrics["accuracy"] == 0.75 and run.metrics["epsilon"] > 0
    assert load(folder, step=4).step == 4
    assert not runs.same_bits(load(folder, step=4).params, state.params)


def test_only_the_released_half_is_needed(finished, tmp_path):
    folder, state = finished
    shutil.copytree(folder / "released", tmp_path / "run" / "released")
    shutil.copytree(folder / "released", tmp_path / "shown")
    for copy in ("run", "shown"):
        assert runs.same_bits(load(tmp_path / copy).params, state.params)
    assert not (tmp_path / "run" / "private").exists()  # nothing is created


def test_the_average_comes_first(tmp_path):
    state = runs.fit(tmp_path / "run", of=runs.trainer(ema_decay=0.9))
    run = load(tmp_path / "run")
    assert run.is_average and runs.same_bits(run.params, state.average)
    assert runs.same_bits(run.last_params, state.params)


def test_an_interrupted_run_gives_its_last_release(tmp_path):
    runs.fit(tmp_path / "run", callback=runs.at_step(4))
    run = load(tmp_path / "run")
    assert run.step == 4 and run.record["ending"] == "ended by the callback"


def test_frozen_parameters_and_structure_come_from_like(tmp_path):
    begin = {
        "base.0": [jnp.full((runs.D, 2), 3.0, jnp.bfloat16), jax.random.key(0)],
        "lora": (jnp.zeros(2, jnp.bfloat16),),
    }

    def loss(p, batch, prng):
        w, b = (x.astype(jnp.float32) for x in (p["base.0"][0], p["lora"][0]))
        return runs.loss({"w": w, "b": b}, batch, prng)

    mesh = make_mesh("data=8")
    trainer = runs.trainer(loss_fn=loss, trainable="lora/*", mesh=mesh, ema_decay=0.9)
    state = runs.fit(tmp_path / "run", of=trainer, begin=begin)
    run = load(tmp_path / "run", like=begin)
    assert jax.tree.structure(run.params) == jax.tree.structure(begin)
    assert run.params["base.0"][1] is begin["base.0"][1]
    assert run.params["lora"][0].dtype == jnp.bfloat16
    assert np.array_equal(run.last_params["lora"][0], state.params["lora"][0])
    assert list(load(tmp_path / "run").params) == ["lora"]
    with pytest.raises(FixArgumentsError, match="like lacks the parameters lora/0"):
        load(tmp_path / "run", like={"base.0": begin["base.0"]})
    with pytest.raises(FixArgumentsError, match=r"like has shape \(3,\) at 'lora/0'"):
        load(tmp_path / "run", like=begin | {"lora": (jnp.zeros(3),)})


def test_names_with_dots_stay_whole(tmp_path):
    begin = {"layer.0": {"w": jnp.zeros((runs.D, 2))}, "b": jnp.zeros(2)}

    def loss(p, batch, prng):
        return runs.loss({"w": p["layer.0"]["w"], "b": p["b"]}, batch, prng)

    runs.fit(tmp_path / "run", of=runs.trainer(loss_fn=loss), begin=begin)
    assert jax.tree.structure(load(tmp_path / "run").params) == jax.tree.structure(begin)


def test_what_cannot_be_loaded_is_named(finished, tmp_path):
    folder, _ = finished
    with pytest.raises(FixArgumentsError, match=r"private is not the folder of a run.*Trainer.fit"):
        load(folder / "private")
    with pytest.raises(FixArgumentsError, match=r"is not the folder of a run.*Trainer.fit"):
        load(tmp_path)
    with pytest.raises(RestoreCheckpointError, match=r"no checkpoint of step 3; .*\[4, 6, 8\]"):
        load(folder, step=3)
    shutil.copytree(folder / "released", tmp_path / "empty")
    shutil.rmtree(tmp_path / "empty" / "checkpoints" / "8" / "00002.params.w")
    (tmp_path / "empty" / "checkpoints" / "8" / "00002.params.w").mkdir()
    with pytest.raises(RestoreCheckpointError, match="cannot be read"):
        load(tmp_path / "empty")
    for step in (4, 6, 8):
        shutil.rmtree(tmp_path / "empty" / "checkpoints" / str(step))
    with pytest.raises(RestoreCheckpointError, match="has no checkpoint"):
        load(tmp_path / "empty")


def test_names_that_differ_in_dots_and_slashes_stay_apart(tmp_path):
    begin = {"a": {"b": jnp.zeros(2)}, "a.b": jnp.zeros((runs.D, 2))}

    def loss(p, batch, prng):
        return runs.loss({"w": p["a.b"], "b": p["a"]["b"]}, batch, prng)

    state = runs.fit(tmp_path / "run", of=runs.trainer(loss_fn=loss, ema_decay=0.5), begin=begin)
    run = load(tmp_path / "run")
    assert runs.same_bits(run.last_params, state.params)
    assert runs.same_bits(run.params, state.average)
    some = runs.trainer(loss_fn=loss, trainable="a.b")
    runs.fit(tmp_path / "frozen", of=some, begin=begin)
    with pytest.raises(RestoreCheckpointError, match="differ only in dots and slashes"):
        load(tmp_path / "frozen")


def test_parameters_that_are_one_array(tmp_path):
    def loss(p, batch, prng):
        return runs.loss({"w": p, "b": jnp.zeros(2)}, batch, prng)

    begin = jnp.zeros((runs.D, 2))
    state = runs.fit(tmp_path / "run", of=runs.trainer(loss_fn=loss), begin=begin)
    for like in (None, begin):
        assert np.array_equal(load(tmp_path / "run", like=like).params, state.params)
