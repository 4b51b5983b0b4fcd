"""Exported models are put back into models of every framework, and forged files are refused."""

import re
import shutil
from pathlib import Path

import equinox as eqx
import framework_models as models
import jax
import keras
import numpy as np
import optax
import pytest
import training_runs as runs
from flax import nnx

from bevel import DPSGDConfig
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.frameworks import equinox as private_equinox
from bevel.frameworks import linen as private_linen
from bevel.frameworks import nnx as private_nnx
from bevel.shipping import export, load
from bevel.training import LoRA

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "shipping.md").read_text()


def test_parameters_come_back_by_name_and_as_a_tree(exported):
    by_name, statement = load(exported)
    assert list(by_name) == sorted(by_name) and statement.run.step == 8
    tree = load(exported, like=runs.params()).params
    assert runs.same_bits(tree, by_name)
    for name in ("model.safetensors", "privacy.json"):
        assert runs.same_bits(load(exported / name).params, by_name)


def test_another_file_is_refused(shipped, tmp_path):
    model = shipped / "model.safetensors"
    shutil.copy(model, tmp_path / "alone.safetensors")
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(RestoreCheckpointError, match=r"'model.safetensors' is another file"):
        load(shipped)
    model.unlink()
    with pytest.raises(RestoreCheckpointError, match=r"'model.safetensors' is missing"):
        load(shipped)
    with pytest.raises(FixArgumentsError, match="there is no privacy statement at"):
        load(tmp_path / "alone.safetensors")


def test_other_models_are_refused(exported):
    with pytest.raises(FixArgumentsError, match=r"like lacks the parameters \w of the run"):
        load(exported, like={"b": np.zeros(2, np.float32)})


CONFIG = DPSGDConfig.default(
    num_examples=16, expected_batch_size=8, iterations=2, noise_multiplier=1.0
)
DATA = models.batch_for("cnn", 16)


@pytest.fixture(autouse=True)
def promotion():
    """The frameworks promote dtypes and ranks on their own, which the other tests forbid."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def options():
    return runs.options(delta=1e-3)


def snippet(framework):
    """The code of docs/shipping.md for a framework."""
    section = PAGE.partition(f"**{framework}.**")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def run_snippet(framework, folder, **names):
    code = snippet(framework).replace('"export"', repr(str(folder)))
    exec(code, names)
    return names


def test_nnx(tmp_path):
    trained = models.nnx_model("cnn")
    fit = {"config": CONFIG, "optimizer": optax.sgd(0.1), "options": options(), "ema_decay": 0.9}
    private_nnx.fit(trained, models.loss, DATA, folder=tmp_path / "run", **fit)
    folder = export(tmp_path / "run")
    names = load(folder).params.keys()
    assert names >= {"conv/kernel", "conv/bias", "norm/scale", "head/kernel"}
    names = run_snippet("Flax NNX", folder, model=models.nnx_model("cnn"))
    assert runs.same_bits(*(nnx.state(m, nnx.Param) for m in (trained, names["model"])))


def test_linen(tmp_path):
    state = models.linen_state("cnn")
    trained = private_linen.fit(
        state, models.loss, DATA, config=CONFIG, folder=tmp_path / "run", options=options()
    )
    folder = export(tmp_path / "run")
    assert "Conv_0/kernel" in load(folder).params
    names = run_snippet("Flax Linen", folder, variables={"params": state.params})
    assert runs.same_bits(names["variables"]["params"], trained.params)


def test_equinox(tmp_path):
    model = models.equinox_model("cnn")
    fit = {"config": CONFIG, "optimizer": optax.sgd(0.1), "options": options()}
    trained = private_equinox.fit(model, models.loss_of_rows, DATA, folder=tmp_path / "run", **fit)
    folder = export(tmp_path / "run")
    assert "head/weight" in load(folder).params
    names = run_snippet("Equinox", folder, model=model)
    arrays = (eqx.filter(m, eqx.is_inexact_array) for m in (trained, names["model"]))
    assert runs.same_bits(*arrays)


def keras_model():
    layers = [keras.Input((runs.D,)), keras.layers.Dense(2, name="dense")]
    return keras.Sequential(layers, name="net")


def test_keras(tmp_path):
    model = keras_model()
    params = {v.path: v.value for v in model.trainable_variables}

    def loss(params, batch, prng):
        values = [params[v.path] for v in model.trainable_variables]
        logits, _ = model.stateless_call(values, [], batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {}

    trainer = runs.trainer(config=runs.config().make(), loss_fn=loss)
    state = runs.fit(tmp_path / "run", of=trainer, begin=params, options=options())
    folder = export(tmp_path / "run")
    assert load(folder).params.keys() == {"net/dense/kernel", "net/dense/bias"}
    names = run_snippet("Keras", folder, model=keras_model())
    for variable in names["model"].trainable_variables:
        assert np.array_equal(variable.value, state.params[variable.path])


def test_lora_factors_are_merged_into_their_base(tmp_path):
    lora, model = LoRA("*kernel*", rank=2), models.nnx_model("cnn")
    fit = {"config": CONFIG, "optimizer": optax.sgd(0.1), "options": options(), "lora": lora}
    trained = models.nnx_model("cnn")
    private_nnx.fit(trained, models.loss, DATA, folder=tmp_path / "run", **fit)
    folder = export(tmp_path / "run")
    assert "conv/kernel/a" in load(folder).params
    parts = private_nnx.functional(model, models.loss, lora=lora)
    merged = parts.merge(load(folder, like=parts.params).params)
    got, expected = (jax.tree.leaves(nnx.state(m, nnx.Param)) for m in (merged, trained))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(got, expected, strict=True))
