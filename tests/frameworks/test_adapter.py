"""What the adapters share: plans, LoRA, the trainer itself, and options."""

import importlib
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from framework_checks import assert_close, plan
from framework_models import batch_for, equinox_model, linen_state, loss, loss_of_rows, nnx_model
from training_runs import options, same_bits

import bevel
from bevel.errors import FixArgumentsError, FixLossError
from bevel.frameworks import equinox, linen
from bevel.frameworks import nnx as flax_nnx
from bevel.training import LoRA, Trainer

KEY = jax.random.key(7)
CASES = {
    "nnx": (flax_nnx, nnx_model, loss),
    "linen": (linen, linen_state, loss),
    "equinox": (equinox, equinox_model, loss_of_rows),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_sets_the_options_of_clipping(name):
    private, make, loss = CASES[name]
    model, batch, chosen = make("cnn"), batch_for("cnn"), plan(l2_clip_norm=2.0)
    by_plan = private.clipped_grad(loss, plan=chosen)
    by_hand = private.clipped_grad(
        loss, l2_clip_norm=2.0, rescale_to_unit_norm=True, normalize_by=8
    )
    assert by_plan.sensitivity() == by_hand.sensitivity() == 1 / 8
    assert_close(by_plan(model, batch, KEY), by_hand(model, batch, KEY), 1e-6)
    for given in ({}, {"plan": chosen, "l2_clip_norm": 1.0}):
        with pytest.raises(FixArgumentsError, match="either l2_clip_norm, or the plan"):
            private.clipped_grad(loss, **given)


@pytest.mark.parametrize("name", CASES)
def test_the_functional_form_is_explained_and_trained_like_any_loss(name):
    private, make, loss = CASES[name]
    model, batch = make("cnn"), batch_for("cnn")
    parts = private.functional(model, loss)
    grad_fn = bevel.clipped_grad(
        parts.loss_fn, has_aux=True, batch_argnums=2, prng_argnum=3, l2_clip_norm=0.5
    )
    arguments = parts.params, parts.model_state, batch, KEY
    own = private.clipped_grad(loss, l2_clip_norm=0.5)(model, batch, KEY)
    assert_close(grad_fn(*arguments)[0], own, 1e-6)
    paths = [row.path for row in bevel.explain(grad_fn, *arguments).rows]
    assert len(paths) == len(jax.tree.leaves(parts.params))


@pytest.mark.parametrize("name", CASES)
def test_padding_rows_contribute_nothing(name):
    private, make, loss = CASES[name]
    model, batch = make("cnn"), batch_for("cnn")
    grad_fn = private.clipped_grad(loss, l2_clip_norm=0.5)
    padded = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x[:2])]), batch)
    mask = np.arange(10) >= 8
    grads = grad_fn(model, padded, KEY, is_padding_example=mask)
    assert_close(grads, grad_fn(model, batch, KEY), 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_loss_that_couples_examples_is_refused(name):
    private, make, loss = CASES[name]

    def coupled(model, batch, key):
        x = batch["x"] - batch["x"].mean(0, keepdims=True)
        given = (key,) if name == "equinox" else ()
        return loss(model, {"x": jnp.tanh(x), "y": batch["y"]}, *given)

    model, batch = make("cnn"), batch_for("cnn", 2)
    with pytest.raises(FixLossError, match=r"couples examples(.|\n)*allow_coupled_examples=True"):
        private.clipped_grad(coupled, l2_clip_norm=0.5)(model, batch, KEY)
    options = {"l2_clip_norm": 0.5, "allow_coupled_examples": True}
    private.clipped_grad(coupled, **options)(model, batch, KEY)
    run = {} if name == "linen" else {"optimizer": optax.sgd(0.1)}
    with pytest.raises(FixLossError, match="couples examples"):
        private.fit(model, coupled, batch_for("cnn", 16), config=plan(1), **run)


MATCH = {
    "nnx": "blocks/*/attention/*/kernel",
    "linen": "*Attention*/kernel",
    "equinox": "blocks/*/attention/*/weight",
}


@pytest.mark.parametrize("name", CASES)
def test_lora_trains_factors_on_a_frozen_base(name):
    private, make, loss = CASES[name]
    model, data = make("transformer"), batch_for("transformer", 16)
    lora = LoRA(MATCH[name], rank=2, full="head/*", base="int8")
    parts = private.functional(model, loss, lora=lora)
    matrices = [name for name, x in parts.params.items() if isinstance(x, dict)]
    assert len(matrices) == 4  # query, key, value, out
    run = {"config": plan(2), "options": options()}
    if name != "linen":
        run["optimizer"] = optax.sgd(0.1)
    before = jax.tree.map(jnp.copy, arrays_of(model))
    result = private.fit(model, loss, data, lora=lora, **run)
    after = arrays_of(model if name == "nnx" else result)
    changed = {path for path, x in before.items() if float(jnp.abs(after[path] - x).max()) > 0.01}
    touched = set(parts.params)
    assert changed and all(any(path.startswith(name) for name in touched) for path in changed)
    assert {path: x.dtype for path, x in after.items()} == {p: x.dtype for p, x in before.items()}


def arrays_of(model):
    if isinstance(model, nnx.Module):
        tree = nnx.state(model, nnx.Param)
    else:
        tree = getattr(model, "params", None) or eqx.filter(model, eqx.is_inexact_array)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def test_options_go_to_the_trainer_or_its_run():
    model, data = nnx_model("cnn"), batch_for("cnn", 16)
    run = {"config": plan(1), "optimizer": optax.sgd(0.1)}
    with pytest.raises(TypeError, match="no_such_option"):
        flax_nnx.fit(model, loss, data, no_such_option=1, **run)
    with pytest.raises(FixArgumentsError, match="pass a function of a model"):
        flax_nnx.fit(model, loss, data, evaluate="accuracy", **run)
    with pytest.raises(FixArgumentsError, match="either trainable or lora"):
        linen.fit(linen_state("cnn"), loss, data, config=plan(1), trainable="*", lora=LoRA("*"))


def test_the_trainer_itself_takes_the_parts():
    data = batch_for("cnn", 16)
    parts = equinox.functional(equinox_model("cnn"), loss_of_rows)
    trainer = Trainer(config=plan(1), loss_fn=parts.loss_fn, optimizer=optax.sgd(0.1))
    state = trainer.fit(data, parts.params, model_state=parts.model_state, options=options())
    run = {"config": plan(1), "optimizer": optax.sgd(0.1), "options": options()}
    model = equinox.fit(equinox_model("cnn"), loss_of_rows, data, **run)
    merged = parts.merge(state.params)
    assert same_bits(*(eqx.filter(m, eqx.is_array) for m in (merged, model)))


@pytest.mark.parametrize("name", ["flax_nnx", "flax_linen", "equinox_modules"])
def test_the_documentation_counts_the_lines_of_privacy(name):
    root = Path(__file__).resolve().parents[2]
    lines = (root / f"examples/{name}.py").read_text().splitlines()
    added = sum(line.endswith("  # +") for line in lines)
    (row,) = (
        line
        for line in (root / "docs/frameworks.md").read_text().splitlines()
        if line.startswith(f"| [examples/{name}.py]")
    )
    assert int(row.split("|")[3]) == added <= 5


@pytest.mark.parametrize(
    ("module", "package"), [("nnx", "flax"), ("linen", "flax"), ("equinox", "equinox")]
)
def test_without_its_framework_an_adapter_says_what_to_install(module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"bevel.frameworks.{module}")
    with pytest.raises(ImportError, match=r"pip install 'bevel\[frameworks\]'"):
        importlib.import_module(f"bevel.frameworks.{module}")
