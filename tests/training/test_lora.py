"""Low-rank factors on a frozen base, against a model that is written with them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_runs import at_step, options, plan, same_bits

import bevel
from bevel.errors import FixArgumentsError
from bevel.training import LoRA, Trainer, load

WIDTH, HEADS, SIZE, TOKENS = 8, 2, 4, 11


def params(dtype=jnp.float32):
    keys = iter(jax.random.split(jax.random.key(0), 9))
    block = {
        "attention": {
            "query": jax.random.normal(next(keys), (WIDTH, HEADS, SIZE)) / 3,
            "out": jax.random.normal(next(keys), (HEADS, SIZE, WIDTH)) / 3,
            "bias": jnp.zeros(WIDTH),
        },
        "mlp": jax.random.normal(next(keys), (WIDTH, WIDTH)) / 3,
    }
    table = jax.random.normal(next(keys), (TOKENS, WIDTH))
    tree = {"embed": table, "block": block, "head": jnp.ones((WIDTH, 3)) / 8}
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def loss(params, batch):
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    x, block = wide["embed"][batch["x"]], wide["block"]
    h = jnp.einsum("btd,dhk->bthk", x, block["attention"]["query"])
    x = x + jnp.einsum("bthk,hkd->btd", jnp.tanh(h), block["attention"]["out"])
    x = x + jnp.tanh(x @ block["mlp"]) + block["attention"]["bias"][None, None]
    each = optax.softmax_cross_entropy_with_integer_labels(x.mean(1) @ wide["head"], batch["y"])
    return each.mean()


def data(size=8):
    rng = np.random.default_rng(1)
    x = rng.integers(0, TOKENS, (size, 5)).astype(np.int32)
    return {"x": x, "y": rng.integers(0, 3, size).astype(np.int32)}


def shifted(factors):
    """Factors whose product is not zero."""
    return jax.tree.map(lambda x: x + 0.1, factors)


def test_training_begins_at_the_base():
    given = params()
    factors, base = LoRA("*/attention/*", rank=3).split(given)
    assert same_bits(base.merged(factors), given)
    shapes = {name: (x["a"].shape, x["b"].shape) for name, x in factors.items()}
    assert shapes == {
        "block/attention/query": ((8, 3), (3, 2, 4)),
        "block/attention/out": ((2, 4, 3), (3, 8)),
    }


@pytest.mark.parametrize("held", ["as given", "bfloat16", "int8"])
def test_the_clipped_sum_is_that_of_single_examples(held):
    factors, base = LoRA(("*/attention/*", "*/mlp"), rank=2, full="head", base=held).split(params())
    factors, batch = shifted(factors), data()

    def of_factors(factors, base, batch):
        return loss(base.merged(factors), batch)

    grads = bevel.clipped_grad(of_factors, batch_argnums=2, l2_clip_norm=0.3)(factors, base, batch)
    total = jax.tree.map(jnp.zeros_like, factors)
    grad = jax.jit(jax.grad(of_factors))
    for i in range(8):
        g = grad(factors, base, jax.tree.map(lambda x, i=i: x[i : i + 1], batch))
        norm = optax.tree.norm(g)
        total = jax.tree.map(lambda t, x, n=norm: t + x * jnp.minimum(1, 0.3 / n), total, g)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(total), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3 * float(jnp.abs(b).max()) + 1e-6)


def test_nothing_of_the_size_of_a_matrix_is_formed_per_example():
    factors, base = LoRA("*/attention/*", rank=2, base="int8").split(params(jnp.bfloat16))

    def of_factors(factors, base, batch):
        return loss(base.merged(factors), batch)

    grad_fn = bevel.clipped_grad(of_factors, batch_argnums=2, l2_clip_norm=0.3)
    rows = bevel.explain(grad_fn, factors, base, data()).rows
    assert {row.uses for row in rows} == {"1 dense"} and len(rows) == 4


def test_int8_rounds_by_half_a_step_of_its_channel():
    given = params()
    factors, base = LoRA("*/mlp", base="int8").split(given)
    held = base.arrays["block/mlp"]
    assert held["int8"].dtype == jnp.int8 and held["scales"].shape == (1, WIDTH)
    error = jnp.abs(base.merged(factors)["block"]["mlp"] - given["block"]["mlp"])
    assert bool((error <= held["scales"] / 2 * (1 + 1e-5)).all())
    assert same_bits(base.arrays["block/attention/bias"], given["block"]["attention"]["bias"])


def test_layers_that_are_stacked_have_their_own_factors():
    given = {"layers": jnp.ones((3, 8, 8)), "other": jnp.ones(3)}
    factors, base = LoRA("layers", rank=2, alpha=4.0, stacked=1, base="int8").split(given)
    factors = shifted(factors)
    assert base.arrays["layers"]["scales"].shape == (3, 1, 8)
    merged = base.merged(factors)["layers"]
    for i in range(3):
        one = 1 + 2.0 * factors["layers"]["a"][i] @ factors["layers"]["b"][i]
        np.testing.assert_allclose(merged[i], one, rtol=1e-5)


def test_a_sharded_base_is_trained_on_a_mesh():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    lora, results = LoRA("*/mlp", rank=2, base="int8"), []
    for place in (False, True):
        given = params()
        if place:
            spec = jax.NamedSharding(mesh, jax.P(None, "model"))
            given["block"]["mlp"] = jax.device_put(given["block"]["mlp"], spec)
        factors, base = lora.split(given)
        if place:
            assert base.arrays["block/mlp"]["int8"].sharding.is_equivalent_to(spec, 2)
        trainer = Trainer(
            config=plan(iterations=2),
            loss_fn=lambda factors, base, data, prng: (loss(base.merged(factors), data), {}),
            optimizer=optax.sgd(0.1, momentum=0.9),
            mesh=mesh if place else None,
        )
        state = trainer.fit(data(48), factors, model_state=base, options=options())
        assert same_bits(state.model_state, base)
        results.append(state.params)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_run_in_a_folder_resumes_and_is_loaded(tmp_path):
    factors, base = LoRA("*/attention/*", rank=2, base="int8").split(params())

    def train(folder, **changed):
        trainer = Trainer(
            config=plan(iterations=4),
            loss_fn=lambda factors, base, data, prng: (loss(base.merged(factors), data), {}),
            optimizer=optax.sgd(0.1),
        )
        run = {"folder": folder, "model_state": base, "options": options()}
        return trainer.fit(data(48), factors, **run, **changed).params

    whole = train(tmp_path / "whole")
    train(tmp_path / "halved", callback=at_step(2))
    assert same_bits(train(tmp_path / "halved"), whole)
    assert same_bits(load(tmp_path / "halved", like=factors).params, whole)
    held = {path.name for path in (tmp_path / "whole/released/checkpoints/4").iterdir()}
    assert not any("embed" in name for name in held)  # the base is in no checkpoint


def test_mistakes_have_clear_errors():
    with pytest.raises(FixArgumentsError, match=r"matches no matrix.*block/attention/bias"):
        LoRA("*/atention/*").split(params())
    with pytest.raises(FixArgumentsError, match="rank=0"):
        LoRA("*", rank=0)
    with pytest.raises(FixArgumentsError, match="'as given', 'bfloat16' or 'int8'"):
        LoRA("*", base="int4")
