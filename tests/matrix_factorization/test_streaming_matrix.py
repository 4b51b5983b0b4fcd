"""Streaming matrices, compared with dense matrices."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import FULL
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import streaming_matrix
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix

N = 5
RATES = np.array([1.0, 0.5, 2.0, 0.0, -1.0])
BETA = 0.75  # its powers are exact


def momentum_matrix(beta, rates):
    velocity = np.array([[beta ** (i - j) if i >= j else 0.0 for j in range(N)] for i in range(N)])
    return np.tril(np.ones((N, N))) @ np.diag(rates) @ velocity


def cases():
    prefix, eye = np.tril(np.ones((N, N))), np.eye(N)
    A, D = streaming_matrix.prefix_sum(), streaming_matrix.diagonal(RATES)
    scaled = streaming_matrix.scale_rows_and_columns
    momentum = streaming_matrix.momentum_sgd_matrix
    return {
        "identity": (streaming_matrix.identity(), eye),
        "prefix_sum": (A, prefix),
        "diagonal": (D, np.diag(RATES)),
        "rows": (scaled(A, row_scale=RATES), np.diag(RATES) @ prefix),
        "columns": (scaled(A, col_scale=RATES), prefix @ np.diag(RATES)),
        "both": (scaled(A, RATES, RATES), np.diag(RATES) @ prefix @ np.diag(RATES)),
        "neither": (scaled(A), prefix),
        "method": (
            A.scale_rows_and_columns(RATES, RATES),
            np.diag(RATES) @ prefix @ np.diag(RATES),
        ),
        "sgd": (momentum(), prefix),
        "momentum": (momentum(BETA), momentum_matrix(BETA, np.ones(N))),
        "rates": (momentum(BETA, RATES), momentum_matrix(BETA, RATES)),
        "product": (D @ A @ D @ A, np.diag(RATES) @ prefix @ np.diag(RATES) @ prefix),
        "scaled": (np.float64(2) * (A * jnp.float32(3)) * 0.5, 3 * prefix),
    }


NAMES = list(cases())
SOME = NAMES if FULL else ["identity", "both", "rates", "product", "scaled"]


@pytest.mark.parametrize("name", NAMES)
def test_materialize_gives_the_matrix(name):
    matrix, dense = cases()[name]
    got = matrix.materialize(N)
    assert got.shape == (N, N) and got.dtype == jnp.float32
    np.testing.assert_array_equal(got, dense)
    np.testing.assert_array_equal(matrix.materialize(3), dense[:3, :3])


@pytest.mark.parametrize("name", SOME)
def test_row_norms_are_those_of_the_matrix(name):
    matrix, dense = cases()[name]
    np.testing.assert_allclose(matrix.row_norms_squared(N), (dense**2).sum(1), rtol=1e-6)


@pytest.mark.parametrize("name", SOME)
def test_trees_are_multiplied_leaf_by_leaf_one_step_at_a_time(name):
    matrix, dense = cases()[name]
    rng = np.random.default_rng(0)
    x = {"w": rng.normal(size=(N, 2, 3)), "b": [rng.normal(size=N), None]}
    x = jax.tree.map(lambda v: v.astype(np.float32), x)
    state = matrix.init_multiply(jax.tree.map(lambda v: v[0], x))
    step = jax.jit(matrix.multiply_next)
    expected = jax.tree.map(lambda v: np.tensordot(dense, v, 1), x)
    for i in range(N):
        row, expected_row = (jax.tree.map(operator.itemgetter(i), t) for t in (x, expected))
        y, state = step(row, state)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), y, expected_row)


def test_rows_of_an_array_are_steps():
    A, x = streaming_matrix.prefix_sum(), np.arange(12.0, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(A @ x, np.cumsum(x, 0))
    np.testing.assert_array_equal(streaming_matrix.multiply_array(A, x[:, 0]), np.cumsum(x[:, 0]))


def test_a_product_is_applied_from_the_right():
    A, D = streaming_matrix.prefix_sum(), streaming_matrix.diagonal(RATES)
    assert not np.array_equal((A @ D).materialize(N), (D @ A).materialize(N))
    product = streaming_matrix.multiply_streaming_matrices(A, D)
    np.testing.assert_array_equal(product.materialize(N), np.tril(np.ones((N, N))) @ np.diag(RATES))


@pytest.mark.parametrize("name", ["diagonal", "rates"])
def test_steps_past_the_end_are_nan(name):
    matrix, _ = cases()[name]
    y = matrix @ np.ones(N + 2, np.float32)
    assert np.isfinite(y[:N]).all() and np.isnan(y[N:]).all()


@pytest.mark.parametrize("sides", [("row_scale",), ("col_scale",), ("row_scale", "col_scale")])
@pytest.mark.parametrize("length", [1, 3, N + 2])
def test_the_last_entry_of_a_scale_is_repeated(sides, length):
    scale = np.arange(2.0, 2 + length, dtype=np.float32)
    extended = np.concatenate([scale, np.full(N, scale[-1])])[:N]
    left, right = (
        np.diag(extended) if s in sides else np.eye(N) for s in ("row_scale", "col_scale")
    )
    matrix = streaming_matrix.prefix_sum().scale_rows_and_columns(**dict.fromkeys(sides, scale))
    np.testing.assert_array_equal(matrix.materialize(N), left @ np.tril(np.ones((N, N))) @ right)


@pytest.mark.parametrize("side", ["row_scale", "col_scale"])
@pytest.mark.parametrize("scale", [np.ones((2, 2)), np.ones(0), 1.0, [1.0, np.nan]])
def test_a_scale_is_a_vector_of_finite_numbers(side, scale):
    with pytest.raises(FixArgumentsError, match=side):
        streaming_matrix.prefix_sum().scale_rows_and_columns(**{side: scale})


@pytest.mark.parametrize("name", ["prefix_sum", "momentum", "diagonal"])
@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float64", *(["float16", "float32"] if FULL else [])]
)
def test_sums_are_taken_in_float32_or_wider(name, dtype):
    with jax.enable_x64(True):
        matrix, dense = cases()[name]
        y = matrix @ jnp.ones(N, dtype)
        assert y.dtype == ("float64" if dtype == "float64" else "float32")
        np.testing.assert_array_equal(y, dense.sum(1))


def test_float64_rows_are_exact_in_float64():
    with jax.enable_x64(True):
        got = streaming_matrix.momentum_sgd_matrix(0.9).row_norms_squared(N)
        assert got.dtype == jnp.float64
        velocity = np.array([[0.9 ** (i - j) if i >= j else 0 for j in range(N)] for i in range(N)])
        dense = np.tril(np.ones((N, N))) @ velocity
        np.testing.assert_allclose(got, (dense**2).sum(1), rtol=1e-14)


def test_a_custom_scan_is_used():
    lengths = []

    def scan(step, state, xs):
        lengths.append(len(xs))
        return jax.lax.scan(jax.checkpoint(step), state, xs)

    matrix, dense = cases()["momentum"]
    got = matrix.row_norms_squared(N, scan_fn=scan)
    np.testing.assert_allclose(got, (dense**2).sum(1), rtol=1e-6)
    assert lengths == [N]


# States.


def test_states_from_shapes_and_from_values_are_equal():
    matrix, _ = cases()["rates"]
    tree = {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(4)}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    states = [matrix.init_multiply(t) for t in (tree, shapes)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    jax.tree.map(np.testing.assert_array_equal, *states)
    for leaf in jax.tree.leaves(states[0]):
        assert leaf.dtype in (jnp.float32, jnp.int32)


@pytest.mark.parametrize("value", [jnp.ones(3), jnp.ones((2, 3)), jnp.ones(1), jnp.ones(())])
def test_a_state_of_another_shape_is_rejected(value):
    A = streaming_matrix.prefix_sum()
    for shape in [(3,), (2, 3), (1,), ()]:
        state = A.init_multiply(jnp.ones(shape))
        if shape == value.shape:
            A.multiply_next(value, state)
        else:
            with pytest.raises((FixArgumentsError, ValueError, TypeError)):
                A.multiply_next(value, state)


def test_a_state_that_would_be_broadcast_is_named():
    A = streaming_matrix.prefix_sum()
    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(FixArgumentsError, match=r"shape \(3,\).*init_multiply"),
    ):
        A.multiply_next(jnp.ones(3), A.init_multiply(jnp.ones(())))


def test_a_state_of_another_tree_is_rejected():
    A = streaming_matrix.prefix_sum()
    state = A.init_multiply({"w": jnp.ones(3)})
    for tree in ({"v": jnp.ones(3)}, {"w": jnp.ones(3), "b": jnp.ones(3)}, [jnp.ones(3)]):
        with pytest.raises(FixArgumentsError, match="another tree"):
            A.multiply_next(tree, state)


MESHES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_are_sharded_like_the_value(kind, compiled):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(MESHES[kind],) * 2)
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
        x = jax.device_put(jnp.ones((8, 4)), sharding)

        def buffers(x):
            return streaming_matrix.buffers_like(x), streaming_matrix.buffers_like(x, 3, 2)

        one, many = (jax.jit(buffers) if compiled else buffers)(x)
        assert one.sharding.is_equivalent_to(sharding, 2)
        assert many.shape == (3, 2, 8, 4)
        expected = NamedSharding(mesh, PartitionSpec(None, None, "data", "model"))
        assert many.sharding.is_equivalent_to(expected, 4)
        assert not np.any(one) and not np.any(many)
        A = streaming_matrix.prefix_sum()
        y, state = jax.jit(A.multiply_next)(x, A.init_multiply(x))
        assert y.sharding.is_equivalent_to(sharding, 2)
        assert state.sharding.is_equivalent_to(sharding, 2)


@pytest.mark.parametrize("check_vma", [True, False])
def test_streams_work_inside_shard_map(check_vma):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = np.arange(3 * 16, dtype=np.float32).reshape(3, 16)
    spec = PartitionSpec(None, "data")

    def prefix(x):
        A = streaming_matrix.prefix_sum()
        step = lambda state, row: A.multiply_next(row, state)[::-1]  # noqa: E731
        return jax.lax.scan(step, A.init_multiply(x[0]), x)[1]

    shards = jax.shard_map(prefix, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    np.testing.assert_array_equal(jax.jit(shards)(x), np.cumsum(x, 0))


# Bad input.


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", True, None])
def test_n_must_be_a_whole_number(n):
    for method in ("materialize", "row_norms_squared"):
        with pytest.raises(FixArgumentsError, match="n="):
            getattr(streaming_matrix.identity(), method)(n)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, float("nan")])
def test_momentum_is_a_fraction(momentum):
    with pytest.raises(FixArgumentsError, match="momentum="):
        streaming_matrix.momentum_sgd_matrix(momentum)


@pytest.mark.parametrize("diag", [np.ones((2, 2)), np.ones(0), 1.0, [1.0, np.nan], [1j]])
def test_a_diagonal_is_a_vector_of_finite_numbers(diag):
    with pytest.raises(FixArgumentsError, match="diag"):
        streaming_matrix.diagonal(diag)


def test_a_scalar_is_rejected():
    with pytest.raises(FixArgumentsError, match="steps"):
        streaming_matrix.identity() @ 2.0


def test_only_scalars_scale_a_matrix():
    A = streaming_matrix.identity()
    for other in (A, np.ones(3), [1.0, 2.0]):
        with pytest.raises(TypeError):
            A * other


def test_a_matrix_from_functions():
    # A shift by one step: y[i] = x[i - 1].
    shift = StreamingMatrix.from_array_implementation(jnp.zeros_like, lambda x, last: (last, x))
    np.testing.assert_array_equal(shift.materialize(4), np.eye(4, k=-1))
