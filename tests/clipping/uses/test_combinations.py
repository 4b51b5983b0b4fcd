"""Parameters combined before they meet an example have the gradients of `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import Program, check, draw

import bevel
from bevel.clipping.uses.find import find_uses

B, T, D, K, R, L = 4, 6, 8, 10, 2, 3
X = draw(B, T, D) * 2.0 ** jnp.linspace(-2.0, 1.0, B)[:, None, None]
FROZEN, LAYERS = draw(D, K), draw(L, D, D)
PAIR = {"a": draw(D, R), "b": draw(R, K)}
PAIRS = {"a": draw(L, D, R), "b": draw(L, R, D)}


def total(y):
    return jnp.sum(jnp.sin(y))


def through(layer):
    def loss(p, x):
        return jnp.sum(lax.scan(lambda c, own: (jnp.tanh(c @ layer(own)), None), x, p)[0] ** 2)

    return loss


def merged_layers(p, x):
    """The loop slices the frozen matrices together with the pairs."""
    layers = {"w": LAYERS, **p}
    return through(lambda own: own["w"] - 0.3 * (own["a"] @ own["b"]))(layers, x)


def one_factor_for_all_layers(p, x):
    layers = {"w": LAYERS, "a": p["a"]}
    return through(lambda own: own["w"] + own["a"] @ p["b"])(layers, x)


def of_both(p, x):
    """The loop shares one factor, whose gradients add, and slices the other."""
    layers = {"w": LAYERS, "b": p["b"]}
    return through(lambda own: own["w"] + p["a"] @ own["b"])(layers, x)


TURNS = {
    "columns side by side": Program(
        lambda p, x: total(x @ jnp.concatenate([p["q"], p["k"]], axis=1)),
        {"q": draw(D, K), "k": draw(D, K + 2)},
    ),
    "rows side by side": Program(
        lambda p, x: total(x @ jnp.concatenate([p["q"], p["k"]])),
        {"q": draw(3, K), "k": draw(D - 3, K)},
    ),
    "beside a constant, transposed": Program(
        lambda p, x: total(x @ jnp.concatenate([FROZEN.T, p["q"]]).T), {"q": draw(3, D)}
    ),
    "stacked heads": Program(
        lambda p, x: total(jnp.einsum("btd,hdk->bthk", x, jnp.stack(p))), [draw(D, K), -draw(D, K)]
    ),
    "stacked on the last dimension": Program(
        lambda p, x: total(jnp.einsum("btd,dkh->bthk", x, jnp.stack(p, axis=-1))),
        [draw(D, K), -draw(D, K)],
    ),
    "a batch dimension of heads": Program(
        lambda p, x: total(jnp.einsum("bthd,hdk->bthk", x.reshape(-1, T, 2, D // 2), jnp.stack(p))),
        [draw(D // 2, K), -draw(D // 2, K)],
    ),
    "layers stacked for a loop": Program(
        lambda p, x: through(lambda w: w)(jnp.stack(p), x), [draw(D, D) * s for s in (1, -2, 0.5)]
    ),
    "joined in a loop": Program(
        through(lambda own: jnp.concatenate([own["l"], own["r"]], axis=1)),
        {"l": draw(L, D, 3), "r": draw(L, D, D - 3)},
    ),
    "merged pair": Program(lambda p, x: total(x @ (FROZEN + 0.5 * (p["a"] @ p["b"]))), PAIR),
    "merged pair and its matrix": Program(
        lambda p, x: total(x @ (p["w"] + (p["a"] @ p["b"]) * 0.5)), {"w": draw(D, K), **PAIR}
    ),
    "merged pair, transposed": Program(
        lambda p, x: total(x @ (FROZEN - (p["b"].T @ p["a"].T).T / 4)), PAIR
    ),
    "negated, beside another term": Program(
        lambda p, x: total(x @ (-(p["a"] @ p["b"]))) + total(x @ FROZEN), PAIR
    ),
    "merged in every layer": Program(merged_layers, PAIRS),
    "one factor for all layers": Program(
        one_factor_for_all_layers, {"a": draw(L, D, R), "b": draw(R, D)}
    ),
    "a factor that a loop shares": Program(of_both, {"a": draw(D, R), "b": draw(L, R, D)}),
    "pairs side by side": Program(
        lambda p, x: total(
            x @ jnp.concatenate([p[0]["a"] @ p[0]["b"], p[1]["a"] @ p[1]["b"]], axis=1)
        ),
        [PAIR, {"a": -draw(D, R), "b": draw(R, 3)}],
    ),
    "in another dtype": Program(
        lambda p, x: total(
            (
                x.astype(jnp.bfloat16) @ (p["a"].astype(jnp.bfloat16) @ p["b"].astype(jnp.bfloat16))
            ).astype(jnp.float32)
        ),
        PAIR,
        tolerance=0.06,
    ),
}
# Combinations whose gradient is not a sum of outer products: materialised, and correct.
KEPT = {
    "a part of both": Program(
        lambda p, x: total(x @ jnp.concatenate([p["q"], p["k"]], axis=1)[:, 5:15]),
        {"q": draw(D, K), "k": draw(D, K)},
    ),
    "reshaped together": Program(
        lambda p, x: total(x @ jnp.concatenate([p["q"], p["k"]]).reshape(K, D).T),
        {"q": draw(D // 2, K), "k": draw(D // 2, K)},
    ),
    "a table of two parts": Program(
        lambda p, x: total(jnp.concatenate(p)[jnp.int32(jnp.abs(x) * 3) % 6]),
        [draw(4, K), draw(2, K)],
    ),
    "with itself": Program(lambda p, x: total(x @ (p @ p.T)), draw(D, D)),
    "times another, entry by entry": Program(
        lambda p, x: total(x @ (p["w"] * p["m"])), {"w": draw(D, K), "m": -draw(D, K)}
    ),
    "a kernel of two parts": Program(
        lambda p, x: total(
            lax.conv_general_dilated(
                x, jnp.concatenate(p, axis=2), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
        ),
        [draw(3, D, 2), draw(3, D, 3)],
    ),
}


@pytest.mark.parametrize(
    "name, way",
    [(name, way) for i, name in enumerate(TURNS) for way in ("gram", "product")[i % 2 :]],
)
def test_equals_a_loop_of_grads(name, way):
    program = TURNS[name]
    check(Program(program.loss, program.params, X, tolerance=program.tolerance), norms=way)


@pytest.mark.parametrize("name", TURNS)
def test_no_gradient_is_kept(name):
    program = TURNS[name]
    flat, tree = jax.tree.flatten(program.params)
    loss = lambda *args: program.loss(jax.tree.unflatten(tree, args[:-1]), args[-1])  # noqa: E731
    found = find_uses(jax.make_jaxpr(loss)(*flat, X[:1]), len(flat))
    assert all(uses and all(use.combinations for use in uses) for uses in found.values()) or (
        name == "merged pair and its matrix"
    )
    assert None not in found.values()


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_sum_of_outer_products_is_kept(name):
    program = KEPT[name]
    check(Program(program.loss, program.params, X))
    fn = bevel.clipped_grad(program.loss, l2_clip_norm=1.0, norms="gram")
    rows = bevel.explain(fn, program.params, X).rows
    assert {row.uses for row in rows} == {"by JAX"}


def test_a_merged_pair_forms_nothing_of_the_size_of_its_matrix_for_an_example():
    wide = {"a": draw(64, 2), "b": draw(2, 96)}
    frozen = draw(64, 96)
    loss = lambda p, x: total(x @ (frozen + p["a"] @ p["b"]))  # noqa: E731
    program = jax.make_jaxpr(bevel.clipped_grad(loss, l2_clip_norm=1.0))(wide, draw(16, 3, 64))
    assert max(sizes(program.jaxpr)) < 16 * 64 * 96


def sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (int(np.prod(v.aval.shape)) for v in eqn.outvars if hasattr(v.aval, "shape"))
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    "name", ["columns side by side", "merged pair", "layers stacked for a loop"]
)
def test_on_a_mesh(name, kind):
    program = TURNS[name]
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)

    def placed(tree, role):
        spec = P("data") if role == "batch" else P()
        return jax.device_put(tree, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        check(Program(program.loss, program.params, X), placed=placed)
