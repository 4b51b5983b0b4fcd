"""Losses that couple examples are found, with the line; sums, means and weights are not."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.clipping.program.coupling import find_coupling

T, D = 6, 4
PARAMS = {"w": jnp.ones((D, D))}
# The losses are written as users write them.
pytestmark = pytest.mark.usefixtures("defaults_of_jax")


@pytest.fixture
def defaults_of_jax():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def hidden(p, x):
    return jnp.tanh(x @ p["w"])


def each(p, x):
    return (hidden(p, x) ** 2).sum((1, 2))


def batch_norm(h, axes=(0, 1)):
    return (h - h.mean(axes)) / jnp.sqrt(h.var(axes) + 1e-5)


def moments(h):
    mean, square = h.mean((0, 1)), (h**2).mean((0, 1))
    return (h - mean) * jax.lax.rsqrt(square - mean**2 + 1e-5)


def contrastive(p, x):
    z = hidden(p, x).sum(1)
    labels = jnp.arange(z.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(z @ z.T, labels).mean()


def whitened(p, x):
    h = hidden(p, x).sum(1)
    return jnp.mean((h @ jnp.linalg.inv(h.T @ h + jnp.eye(D))) ** 2)


def layers(wrap):
    def loss(p, x):
        def layer(h, w):
            return wrap(jnp.tanh(h @ w)), None

        return jnp.mean(jax.lax.scan(layer, x, jnp.stack([p["w"]] * 3))[0] ** 2)

    return loss


@jax.custom_vjp
def normed(h):
    return batch_norm(h)


normed.defvjp(lambda h: (batch_norm(h), h), lambda h, g: (g,))


def repeated(p, x):
    return jnp.mean(jax.lax.fori_loop(0, 3, lambda _, h: batch_norm(h), hidden(p, x)) ** 2)


def branch(p, x):
    return jnp.mean(jax.lax.cond(x.sum() > 0, batch_norm, lambda h: h, hidden(p, x)) ** 2)


def flat(p, x):
    h = hidden(p, x).reshape(-1, D)
    return jnp.mean((h - h.mean(0)) ** 2)


def averaging_matrix(p, x):
    h = hidden(p, x).sum(1)
    return jnp.mean((h - (jnp.ones((len(x), len(x))) / len(x)) @ h) ** 3)


COUPLED = {
    "sorted": lambda p, x: jnp.sort(each(p, x))[:2].sum(),
    "median": lambda p, x: jnp.mean((each(p, x) - jnp.median(each(p, x))) ** 2),
    "reversed": lambda p, x: jnp.mean(hidden(p, x) * jnp.flip(hidden(p, x), 0)),
    "rolled": lambda p, x: jnp.mean(hidden(p, x) * jnp.roll(hidden(p, x), 1, axis=0)),
    "mixed by a roll": lambda p, x: each(p, (x + jnp.roll(x, -1, axis=0)) / 2).mean(),
    "batch norm": lambda p, x: jnp.mean(batch_norm(hidden(p, x)) ** 3),
    "batch norm by moments": lambda p, x: jnp.mean(moments(hidden(p, x)) ** 3),
    "batch norm, examples only": lambda p, x: jnp.mean(batch_norm(hidden(p, x), 0) ** 3),
    "batch norm of the inputs": lambda p, x: jnp.mean(hidden(p, batch_norm(x)) ** 2),
    "inputs scaled by the largest": lambda p, x: jnp.mean(hidden(p, x / jnp.abs(x).max()) ** 2),
    "variance as a penalty": lambda p, x: jnp.var(hidden(p, x), axis=0).sum(),
    "softmax over the batch": lambda p, x: jnp.mean(jax.nn.softmax(hidden(p, x), axis=0) * x),
    "advantages": lambda p, x: ((x[:, 0, 0] - x[:, 0, 0].mean()) * each(p, x)).mean(),
    "losses relative to their mean": lambda p, x: (
        each(p, x) / jax.lax.stop_gradient(each(p, x).mean())
    ).mean(),
    "cumulative": lambda p, x: jnp.mean(jnp.cumsum(hidden(p, x), axis=0) ** 2),
    "pairs": contrastive,
    "distances": lambda p, x: jnp.mean((each(p, x)[:, None] - each(p, x)[None]) ** 2),
    "whitening": whitened,
    "merged with positions": flat,
    "matrix of averages": averaging_matrix,
    "in jit": lambda p, x: jnp.mean(jax.jit(batch_norm)(hidden(p, x)) ** 2),
    "in checkpoint": lambda p, x: jnp.mean(jax.checkpoint(batch_norm)(hidden(p, x)) ** 2),
    "in scan": layers(batch_norm),
    "in a loop": repeated,
    "in cond": branch,
    "in custom_vjp": lambda p, x: jnp.mean(normed(hidden(p, x)) ** 2),
    "in vmap": lambda p, x: jnp.mean(jax.vmap(lambda h: h - h.mean(0), 1, 1)(hidden(p, x)) ** 2),
}


def weights(x):
    return jnp.abs(x[:, 0, 0])


def mask(x):
    return (x[:, :, 0] > 0).astype(jnp.float32)


def tokens(p, x):
    return (hidden(p, x) ** 2).sum(2)


def decayed(p, x):
    return each(p, x).mean() + 0.1 * sum(jnp.sum(w**2) for w in jax.tree.leaves(p))


def class_weights(p, x):
    classes = jnp.round(x[:, 0, 0]).astype(int)
    counts = jnp.zeros(3).at[classes].add(1.0)
    return (each(p, x) / counts[classes]).mean()


def picked(p, x):
    h = hidden(p, x)[0]
    return jnp.mean((h - h.mean(0)) ** 2)


def attention(p, x):
    h = hidden(p, x)[:, :, None]
    return jnp.mean(jax.nn.dot_product_attention(h, h, h) ** 2)


def convolved(p, x):
    numbers = ("NWC", "WIO", "NWC")
    y = jax.lax.conv_general_dilated(x, p["w"][None], (1,), "SAME", dimension_numbers=numbers)
    return jnp.mean(jnp.tanh(y))


def gradient_penalty(p, x):
    slope = jax.grad(lambda x: each(p, x).sum())(x)
    return jnp.mean(slope**2)


def experts(p, x):
    h = x.reshape(-1, D)
    chosen = jnp.argmax(h @ p["w"], -1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=2)
    y = jax.lax.ragged_dot(h[order], jnp.stack([p["w"]] * 2), sizes)
    return jnp.mean(y[jnp.argsort(order)] ** 2)


def one_at_a_time(p, x):
    def add(total, row):
        return total + jnp.sum((row @ p["w"]) ** 2), None

    return jax.lax.scan(add, 0.0, x)[0] / len(x)


APART = {
    "sum": lambda p, x: each(p, x).sum(),
    "mean": lambda p, x: each(p, x).mean(),
    "mean of all": lambda p, x: jnp.mean(hidden(p, x) ** 2),
    "weighted mean": lambda p, x: (each(p, x) * weights(x)).sum() / weights(x).sum(),
    "normalised weights": lambda p, x: (each(p, x) * (weights(x) / weights(x).sum())).sum(),
    "weights of mean 1": lambda p, x: (each(p, x) * weights(x) / weights(x).mean()).mean(),
    "dot product with weights": lambda p, x: (weights(x) / weights(x).sum()) @ each(p, x),
    "jnp.average": lambda p, x: jnp.average(each(p, x), weights=weights(x)),
    "tokens": lambda p, x: (tokens(p, x) * mask(x)).sum() / jnp.maximum(mask(x).sum(), 1),
    "tokens, scaled first": lambda p, x: (tokens(p, x) * mask(x) / mask(x).sum()).sum(),
    "mean where": lambda p, x: jnp.mean(tokens(p, x), where=mask(x) > 0),
    "class weights": class_weights,
    "weight decay": decayed,
    "activity penalty": lambda p, x: each(p, x).mean() + jnp.mean(hidden(p, x)) ** 2,
    "norm of the losses": lambda p, x: jnp.linalg.norm(each(p, x)),
    "layer norm": lambda p, x: jnp.mean(jax.nn.standardize(hidden(p, x), axis=-1) ** 3),
    "instance norm": lambda p, x: jnp.mean(jax.nn.standardize(hidden(p, x), axis=1) ** 3),
    "z loss": lambda p, x: jnp.mean(jax.nn.logsumexp(hidden(p, x), axis=-1) ** 2),
    "cumulative in time": lambda p, x: jnp.mean(jnp.cumsum(hidden(p, x), axis=1) ** 2),
    "sorted in time": lambda p, x: jnp.sort(hidden(p, x), axis=1)[:, -1].mean(),
    "rolled in time": lambda p, x: jnp.mean(hidden(p, x) * jnp.roll(hidden(p, x), 1, axis=1)),
    "largest features": lambda p, x: jax.lax.top_k(hidden(p, x), 2)[0].mean(),
    "split and joined": lambda p, x: jnp.mean(
        jnp.concatenate([hidden(p, x[:1]), hidden(p, x[1:])])
    ),
    "attention": attention,
    "convolution": convolved,
    "layers": layers(jnp.tanh),
    "vmap": lambda p, x: jnp.mean(jax.vmap(lambda e: jnp.var(hidden(p, e), axis=0).sum())(x)),
    "map": lambda p, x: jnp.mean(jax.lax.map(lambda e: jnp.var(hidden(p, e)), x)),
    "a loop over examples": one_at_a_time,
    "gradient penalty": gradient_penalty,
    "experts": experts,
    "written for one example": picked,
    "frozen statistics": lambda p, x: jnp.mean((hidden(p, x) - np.ones(D)) ** 2),
}


def found(loss, size):
    jaxpr = jax.make_jaxpr(loss)(PARAMS, jnp.ones((size, T, D)))
    return find_coupling(jaxpr, [0], [1])


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("loss", COUPLED.values(), ids=COUPLED.keys())
def test_coupled_examples_are_found(loss, size):
    assert found(loss, size) is not None


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("loss", APART.values(), ids=APART.keys())
def test_other_losses_raise_no_alarm(loss, size):
    assert found(loss, size) is None


def test_auxiliary_outputs_may_be_statistics():
    def loss(p, x):
        h = hidden(p, x)
        jax.debug.print("{}", jnp.mean(h))
        return jnp.mean(h**2), {"normed": batch_norm(h), "std": h.std(0)}

    assert found(loss, 2) is None


def test_lines_are_those_of_the_statistic_and_of_its_use():
    def loss(p, x):
        h = hidden(p, x)
        mean = jnp.mean(h, axis=0)
        h = jnp.tanh(h)
        return jnp.mean((h - mean) ** 2)

    _, start = inspect.getsourcelines(loss)
    text = str(found(loss, 2))
    assert (
        f"reduce_sum runs over the batch at tests/clipping/program/test_coupling.py:{start + 2}"
        in text
    )
    assert text.endswith(f"for each example at tests/clipping/program/test_coupling.py:{start + 4}")


def test_a_line_inside_of_a_library_is_that_of_the_call():
    """JAX traces `jnp.var` once: its equations have the line of the first call."""
    first = jnp.var(jnp.ones((2, T, D)), axis=0)

    def loss(p, x):
        return jnp.var(hidden(p, x), axis=0).sum() + first.sum()

    assert f"test_coupling.py:{inspect.getsourcelines(loss)[1] + 1}" in str(found(loss, 2))


def test_messages_differ_by_kind():
    assert str(found(contrastive, 2)).startswith("there is a value for each pair of examples at")
    assert str(found(COUPLED["cumulative"], 2)).startswith("cumsum runs over the batch at")
    for name, kind in {"sorted": "sort", "reversed": "rev", "rolled": "roll"}.items():
        said = str(found(COUPLED[name], 2))
        assert said.startswith(f"{kind} moves values from one example to another at")


def test_a_form_that_is_not_expected_raises_nothing(monkeypatch):
    monkeypatch.setattr("bevel.clipping.program.batch_dims._RULES", {"sub": lambda *a: 1 / 0})
    assert found(COUPLED["batch norm"], 2) is None


# Layers of frameworks.


def flax_linen(training):
    nn = pytest.importorskip("flax.linen")
    layer = nn.BatchNorm(use_running_average=not training)
    variables = layer.init(jax.random.key(0), jnp.ones((2, T, D)))

    def loss(p, x):
        h, _ = layer.apply(variables, hidden(p, x), mutable=["batch_stats"])
        return jnp.mean(h**2)

    return loss


def flax_nnx(training):
    nnx = pytest.importorskip("flax.nnx")
    layer = nnx.BatchNorm(D, use_running_average=not training, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)

    def loss(p, x):
        copy = nnx.merge(graph, jax.tree.map(lambda a: a + 0 * x.sum(), state))
        return jnp.mean(copy(hidden(p, x)) ** 2)

    return loss if training else lambda p, x: jnp.mean(nnx.merge(graph, state)(hidden(p, x)) ** 2)


@pytest.mark.parametrize("make", [flax_linen, flax_nnx])
def test_layers_of_flax(make):
    assert found(make(True), 2) is not None and found(make(True), 1) is not None
    assert found(make(False), 2) is None


def test_group_norm_is_the_way_out():
    nn = pytest.importorskip("flax.linen")
    for layer in (nn.GroupNorm(num_groups=2), nn.LayerNorm()):
        variables = layer.init(jax.random.key(0), jnp.ones((2, T, D)))

        def loss(p, x, layer=layer, variables=variables):
            return jnp.mean(layer.apply(variables, hidden(p, x)) ** 3)

        assert found(loss, 1) is None and found(loss, 2) is None


def test_batch_norm_of_equinox_reduces_over_a_named_axis():
    eqx = pytest.importorskip("equinox")
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(D, axis_name="batch", mode="batch")

    def loss(p, x):
        fresh = jax.tree.map(lambda a: a, state)  # a state can be used once
        h = jax.vmap(lambda e: layer(e, fresh)[0], axis_name="batch")(hidden(p, x).sum(1))
        return jnp.mean(h**3)

    assert found(loss, 2) is not None and found(loss, 1) is not None
