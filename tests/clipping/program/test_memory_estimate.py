"""The estimate of peak memory, against figures by hand and against the compiler."""

import functools

import jax
import jax.numpy as jnp
import pytest
from benchmark_models import models

import bevel
from bevel.clipping.program.memory_estimate import ProgramSteps, estimate_memory

N = 16
MATRIX = 4 * N * N  # bytes
TINY = models.GptSize(depth=2, width=32, heads=2, length=24, vocabulary=64)


@pytest.fixture(autouse=True)
def as_users_have_it():
    """The models of the benchmarks are written for JAX's defaults."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def temporaries(function, *shapes):
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return ProgramSteps(jax.make_jaxpr(function)(*given).jaxpr).temporaries()


def on_matrices(function, count=1):
    return temporaries(function, *[(N, N)] * count)


def test_arguments_and_results_are_counted_once():
    program = jax.make_jaxpr(lambda x, y: (x @ y, x))(*[jnp.zeros((N, N))] * 2)
    assert estimate_memory(program) == 4 * MATRIX


def test_elementwise_work_is_fused_and_done_in_place():
    assert on_matrices(lambda x: jnp.sum(jnp.exp(x) * 2 + 1)) == 0
    assert on_matrices(lambda x: jnp.tanh(x @ x) @ x) == MATRIX
    # The product is computed in the buffer of the result.
    assert on_matrices(lambda x: jnp.tanh(x @ x) + 1) == 0


def test_what_a_product_reads_exists():
    assert on_matrices(lambda x: jnp.exp(x) @ jnp.sin(x)) == 2 * MATRIX


def test_what_two_read_exists_unless_it_is_a_broadcast():
    def twice(x, y):
        wide = jnp.broadcast_to(y, (N, N))
        return jnp.sum(x * wide, 0), jnp.sum(x + wide, 1)

    def shared(x):
        y = jnp.exp(x)
        return jnp.sum(y, 0), jnp.max(y, 1)

    assert temporaries(twice, (N, N), (N,)) == 0
    assert on_matrices(shared) == MATRIX


def test_views_take_no_memory():
    def viewed(x):
        y = (x @ x).T.reshape(1, N, N)
        return jnp.sum(y, 0)[None] @ x

    assert on_matrices(viewed) == MATRIX


def test_a_value_lives_until_it_is_last_read():
    def chain(x):
        for _ in range(5):
            x = x @ x
        return x @ x

    def all_needed(x):
        found = [x]
        for _ in range(5):
            found.append(found[-1] @ x)
        return functools.reduce(jnp.matmul, found[::-1])

    assert on_matrices(chain) == 2 * MATRIX
    assert 5 * MATRIX <= on_matrices(all_needed) <= 6 * MATRIX


def test_what_no_result_needs_is_not_computed():
    def unused(x):
        x @ x @ x @ x
        return jnp.sum(x)

    assert on_matrices(unused) == 0


def test_what_can_run_early_is_held_from_there():
    def late(x, y):
        first = x @ x
        for _ in range(3):
            y = y @ y
        return y @ (first @ x)  # the second product does not need the first

    # Two of the chain and the early one. The first is freed by then.
    assert on_matrices(late, 2) == 3 * MATRIX


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda plain: plain])
def test_calls_are_opened(wrap):
    # relu has a custom derivative rule, which adds a call.
    assert on_matrices(wrap(lambda x: jax.nn.relu(x @ x) @ x)) == MATRIX


def test_a_loop_holds_what_it_stacks_and_one_turn():
    def looped(x, length):
        turn = lambda c, _: (jnp.tanh(c @ x) @ x, c)  # noqa: E731
        return jnp.sum(jax.lax.scan(turn, x, None, length=length)[1])

    found = [on_matrices(functools.partial(looped, length=n)) for n in (4, 5, 9)]
    assert found[1] - found[0] == MATRIX and found[2] - found[1] == 4 * MATRIX


def test_of_branches_the_larger_counts():
    def branches(x):
        large = lambda: jnp.tanh(x @ x) @ x  # noqa: E731
        return jax.lax.cond(x[0, 0] > 0, large, lambda: x)

    assert MATRIX <= on_matrices(branches) < MATRIX + 64


def stack_of_layers(remat):
    layer = lambda x, w: jnp.sin(jnp.sin(jnp.sin(x @ w)))  # noqa: E731
    layer = jax.checkpoint(layer) if remat else layer

    def loss(w, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0])

    return jax.grad(loss)


def test_a_remat_saves_less():
    shapes = (6, N, N), (512, N)
    kept, again = (temporaries(stack_of_layers(remat), *shapes) for remat in (False, True))
    one = 4 * 512 * N
    assert again <= kept - 12 * one


def gradients(loss):
    return {"jax.grad": jax.grad(loss), "bevel": bevel.clipped_grad(loss, l2_clip_norm=1.0)}


def sized_gpt(layers, batch_size=4, **size):
    case = models.gpt(
        jnp.dtype("float32"), batch_size=batch_size, size=TINY._replace(**size), layers=layers
    )
    return case


CASES = {
    "mlp": lambda: models.make("mlp", "small", "float32"),
    "scan": lambda: sized_gpt("scan"),
    "block": lambda: sized_gpt("loop", depth=1),
}


@pytest.mark.full
@pytest.mark.parametrize("which", ["jax.grad", "bevel"])
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_near_what_the_compiler_says(name, which):
    case = CASES[name]()
    traced = jax.jit(gradients(case.loss)[which]).trace(*case.arguments)
    found = traced.lower().compile().memory_analysis()
    peak = found.argument_size_in_bytes + found.output_size_in_bytes
    peak += found.temp_size_in_bytes - found.alias_size_in_bytes
    assert estimate_memory(traced.jaxpr) == pytest.approx(peak, rel=0.3)


@pytest.mark.parametrize("layers", ["loop", "scan"])
@pytest.mark.parametrize("which", ["jax.grad", "bevel"])
def test_the_estimate_grows_with_batch_and_length(layers, which):
    def estimate(**size):
        case = sized_gpt(layers, **size)
        return estimate_memory(jax.jit(gradients(case.loss)[which]).trace(*case.arguments).jaxpr)

    base = estimate(batch_size=4)
    held = 2 * 4 * sum(x.size for x in jax.tree.leaves(sized_gpt(layers).params))
    # Everything but parameters and gradients doubles with the batch. With the length it doubles
    # roughly, because scores grow faster and other norms may be chosen.
    assert estimate(batch_size=8) - held == pytest.approx(2 * (base - held), rel=0.15)
    assert estimate(batch_size=4, length=48) - held > 1.7 * (base - held)
