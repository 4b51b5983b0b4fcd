"""Operations that `vmap` would show all examples see one of them, or are refused.

Every attack is an operation that takes from each example what it finds in the others. 64 examples:
replacing one may move the clipped sum by the sensitivity, the contents of padding by nothing, and
the sum is that of a loop over the examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from coupling_operations import ALWAYS_ALONE, OPERATIONS, D, behind_generic_batching, doubled
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel import clipped_fun, clipped_grad
from bevel.precision import rounding_growth

B, K, CLIP = 64, 4, 0.5
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(D, K)), jnp.float32)
X = np.asarray(RNG.normal(size=(B, D)), np.float32)
PADDING = np.arange(B) >= 56


def of(operation):
    def loss(w, x):
        return jnp.sum((operation(x) @ w) ** 2) / 2

    return loss


def distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return np.sqrt(sum(np.sum((np.asarray(x, np.float64) - y) ** 2) for x, y in pairs))


def assert_alone(fn, total, moved_by=2 * CLIP, tolerance=2e-3):
    """`fn(batch, padding)` is the sum of a loop, and one example moves it within the bound."""
    got = fn(X, PADDING)
    assert distance(got, total) <= tolerance * distance(total, jax.tree.map(np.zeros_like, total))
    garbage = np.where(PADDING[:, None], 1e6 * RNG.normal(size=X.shape), X).astype(np.float32)
    jax.tree.map(np.testing.assert_array_equal, fn(garbage, PADDING), got)
    for i, row in ((0, 300.0), (20, -50.0)):
        neighbour = X.copy()
        neighbour[i] = row
        slack = 1e-5 + rounding_growth(4 * B)
        assert distance(fn(neighbour, PADDING), got) <= moved_by * (1 + slack)


def slow(loss, **options):
    return oracle.clipped_sum(loss, W, X, clip_norm=CLIP, padding=PADDING, **options).grad


def check(loss, same=None, **options):
    """`same`: the loss, written with `doubled`."""
    fn = clipped_grad(loss, l2_clip_norm=CLIP, **options)
    total = slow(same or loss, keep_batch_dim=options.get("keep_batch_dim", True))
    assert_alone(lambda x, padding: fn(W, x, is_padding_example=padding), total)


@pytest.mark.parametrize("name", [*OPERATIONS, *ALWAYS_ALONE])
def test_an_operation_sees_one_example(name):
    check(of((OPERATIONS | ALWAYS_ALONE)[name]))


# Where an operation hides.


def in_custom_jvp(operation):
    function = jax.custom_jvp(lambda x: operation(x))
    function.defjvp(lambda primals, tangents: (function(*primals), 2 * tangents[0]))
    return of(function)


def in_custom_vjp(operation):
    function = jax.custom_vjp(lambda x: operation(x))
    function.defvjp(lambda x: (function(x), None), lambda _, g: (2 * g,))
    return of(function)


def in_backward_rule(operation):
    function = jax.custom_vjp(lambda y: y)
    function.defvjp(lambda y: (y, None), lambda _, g: (operation(g),))
    return lambda w, x: jnp.sum(function(x @ w) ** 2) / 2


def in_forward_rule(operation, **options):
    function = jax.custom_vjp(lambda y: 2 * y)
    function.defvjp(lambda y: (operation(y), None), lambda _, g: (2 * g,), **options)
    return lambda w, x: jnp.sum(function(x @ w) ** 2) / 2


def in_tangent_rule(operation):
    function = jax.custom_jvp(lambda y, scale: scale * y)

    @function.defjvp
    def _(primals, tangents):
        scale = operation(primals[1])
        return scale * primals[0], scale * tangents[0]

    return lambda w, x: jnp.sum(function(x @ w, x[:, :1]) ** 2) / 2


def in_an_inner_shard_map(operation):
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    options = {"mesh": mesh, "in_specs": P(), "out_specs": P(), "check_vma": False}
    return of(jax.shard_map(operation, **options))


def in_a_scan(operation):
    def loss(w, x):
        def step(h, _):
            return jnp.tanh(operation(x) @ w) + h, None

        return jnp.sum(lax.scan(step, jnp.zeros((x.shape[0], K), x.dtype), length=2)[0] ** 2)

    return loss


def in_a_solve(operation):
    def solved(x):
        def matvec(v):
            return 4 * v

        return lax.custom_linear_solve(matvec, x, lambda _, b: operation(b) / 8, symmetric=True)

    return of(solved)


PLACES = {
    "jit": lambda op: of(jax.jit(op)),
    "scan": in_a_scan,
    "while": lambda op: of(
        lambda x: lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, op(s[1])), (0, x))[1]
    ),
    "cond on the example": lambda op: of(lambda x: lax.cond(jnp.sum(x) > 0, op, jnp.tanh, x)),
    "cond on a parameter": lambda op: (
        lambda w, x: of(lambda x: lax.cond(jnp.sum(w) < 9, op, jnp.tanh, x))(w, x)
    ),
    "remat": lambda op: jax.checkpoint(of(op)),
    "remat in a scan in jit": lambda op: jax.jit(jax.checkpoint(in_a_scan(op))),
    "vmap of the loss": lambda op: (
        lambda w, x: jnp.sum(jax.vmap(of(op), (None, 0))(w, jnp.stack([x, 3 * x])))
    ),
    "custom_jvp": in_custom_jvp,
    "custom_vjp": in_custom_vjp,
    "tangent rule": in_tangent_rule,
    "forward rule": in_forward_rule,
    "forward rule, optimize_remat": lambda op: in_forward_rule(op, optimize_remat=True),
    "backward rule": in_backward_rule,
    "inner shard_map": in_an_inner_shard_map,
    "linear solve": in_a_solve,
    "XLA metadata": lambda op: of(set_xla_metadata(note="kept")(op)),
}
ONE_OF_EACH = ("custom_vmap", "pure_callback, expand_dims", "primitive with a rule of its own")


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("place", PLACES)
def test_it_sees_one_example_wherever_it_hides(place, kind):
    # The user's own vmap may couple what it batches: that is part of one example.
    same = None if place == "vmap of the loss" else PLACES[place](doubled)
    check(PLACES[place](OPERATIONS[kind]), same)


def test_it_sees_one_example_inside_a_hidden_program_in_a_loop():
    check(in_a_scan(OPERATIONS["hijax"]))
    check(in_a_scan(behind_generic_batching))


# Every path of the engine.

OPTIONS = {
    "vmap": {"engine": "vmap"},
    "kept": {"norms": "keep"},
    "low memory": {"memory": "low"},
    "microbatches": {"microbatch_size": 8},
    "no batch dimension": {"keep_batch_dim": False},
}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("name", OPTIONS)
def test_it_sees_one_example_on_every_path(name, kind):
    operation = OPERATIONS[kind]
    loss = of(operation)
    if name == "low memory":
        loss = jax.checkpoint(lambda w, x: in_backward_rule(operation)(w, operation(x)))
    if name == "no batch dimension":
        loss = lambda w, x: of(operation)(w, x[None])  # noqa: E731
    check(loss, **OPTIONS[name])


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_transform_of_the_gradient_sees_one_example(kind):
    operation, loss = OPERATIONS[kind], of(jnp.sin)
    fn = clipped_grad(loss, l2_clip_norm=CLIP, pre_clipping_transform=operation)
    total = slow(loss, transform=doubled)
    assert_alone(lambda x, padding: fn(W, x, is_padding_example=padding), total)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_a_clipped_function_sees_one_example(kind, engine):
    fn = clipped_fun(OPERATIONS[kind], l2_clip_norm=CLIP, engine=engine)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    total = np.sum((X * np.minimum(2.0, CLIP / lengths))[~PADDING], axis=0, keepdims=True)
    assert_alone(lambda x, padding: fn(x, is_padding_example=padding), total)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_sum_on_the_grid_sees_one_example(kind):
    with jax.enable_x64(True):
        loss = of(OPERATIONS[kind])
        fn = clipped_grad(loss, l2_clip_norm=CLIP, grid_scale=2**16)

        def summed(x, padding):
            return fn(W, x, is_padding_example=padding).astype(np.float64) * CLIP / 2**16

        assert_alone(summed, slow(loss))


MESHES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("kinds", MESHES)
def test_it_sees_one_example_on_a_mesh(kinds, kind):
    loss = in_a_scan(OPERATIONS[kind])
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(MESHES[kinds],) * 2)
    total = slow(loss)
    fn = clipped_grad(loss, l2_clip_norm=CLIP)

    def run(x, padding):
        with jax.set_mesh(mesh):
            w, x = jax.device_put(
                (W, x), (NamedSharding(mesh, P()), NamedSharding(mesh, P("data")))
            )
            return fn(w, x, is_padding_example=padding)

    assert_alone(run, total)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", ["custom_vmap", "rbg keys"])
def test_it_sees_one_example_inside_shard_map(kind, check_vma):
    loss = of(jax.jit(OPERATIONS[kind]))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    fn = clipped_grad(loss, l2_clip_norm=CLIP, reduce_axes="data", batch_axes="data")
    mapped = jax.shard_map(
        lambda x, padding: fn(W, x, is_padding_example=padding),
        mesh=mesh,
        in_specs=(P("data"), P("data")),
        out_specs=P(),
        check_vma=check_vma,
    )
    total = slow(loss)
    assert_alone(jax.jit(mapped), total)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["mean", "replicated parameter"])
def test_a_shard_map_in_the_loss_mixes_no_examples_of_other_places(name, check_vma):
    """Examples lie along `data`, over which the loss communicates, or its derivative does."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    options = {"mesh": mesh, "check_vma": check_vma}

    def mean(x):
        varying = lax.pcast(x, ("data",), to="varying") if check_vma else x
        return x + 100 * lax.pmean(varying, "data")

    def product(x, w):
        return lax.psum(x @ w, "model")

    def loss(w, x):
        if name == "mean":
            y = jax.shard_map(mean, in_specs=P(), out_specs=P(), **options)(x) @ w
        else:
            specs = (P(None, "model"), P("model"))
            y = jax.shard_map(product, in_specs=specs, out_specs=P(), **options)(x, w)
        return jnp.sum(y**2) / 2

    same = (lambda w, x: of(lambda x: 101 * x)(w, x)) if name == "mean" else of(lambda x: x)
    placed = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    fn = clipped_grad(loss, l2_clip_norm=CLIP)
    run = lambda x, padding: fn(*jax.device_put((W, x), placed), is_padding_example=padding)  # noqa: E731
    assert_alone(run, slow(same))
