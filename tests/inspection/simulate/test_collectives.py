"""Collectives that virtual devices cannot run, compared with their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from shard_map_programs import X

from bevel.errors import FixArgumentsError
from bevel.inspection.simulate.collectives import RULES, tables_of_groups
from bevel.sharding.simulate import simulate_shard_map


def on_x(body, *args, **options):
    options = {"mesh": {"x": 8}, "in_specs": P("x"), "out_specs": P("x")} | options
    return simulate_shard_map(body, **options)(*args)


def test_broadcast_is_a_masked_sum():
    def masked(x):
        return lax.psum(jnp.where(lax.axis_index("x") == 3, x, jnp.zeros_like(x)), "x")

    expected = on_x(masked, X, out_specs=P("x"))
    found = on_x(lambda x: lax.pbroadcast(x, "x", 3), X)
    np.testing.assert_array_equal(found, expected)


def test_ragged_exchange_is_that_of_a_loop():
    """Device s sends `sizes[s, r]` of its rows to device r, which packs them by sender."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 3, (8, 8)).astype(np.int32)
    starts = (np.cumsum(sizes, 1) - sizes).astype(np.int32)
    targets = (np.cumsum(sizes, 0) - sizes).astype(np.int32)
    rows = rng.normal(size=(8, 24, 2)).astype(np.float32)
    expected = np.full((8, 24, 2), -1, np.float32)
    for s in range(8):
        for r in range(8):
            sent = rows[s, starts[s, r] : starts[s, r] + sizes[s, r]]
            expected[r, targets[s, r] : targets[s, r] + sizes[s, r]] = sent

    def body(rows, starts, sizes, targets, received):
        out = jnp.full_like(rows[0], -1)
        operands = (starts[0], sizes[0], targets[0], received[0])
        return lax.ragged_all_to_all(rows[0], out, *operands, axis_name="x")[None]

    found = on_x(body, rows, starts, sizes, targets, np.ascontiguousarray(sizes.T))
    np.testing.assert_array_equal(found, expected)


def test_asynchronous_halves_are_done_at_once():
    if not hasattr(lax, "psum_scatter_start"):
        pytest.skip("this JAX has none")
    found = on_x(lambda x: lax.psum_scatter_start(x, "x", tiled=True).done(), X.repeat(8, 0))
    np.testing.assert_allclose(found, np.broadcast_to(X.sum(0), (8, 12)), rtol=1e-5, atol=1e-5)


def test_groups_name_every_device_once():
    table, group_of, index_of = tables_of_groups([[2, 0], [1, 3]], 4)
    assert table.tolist() == [[2, 0], [1, 3]]
    assert group_of.tolist() == [0, 1, 0, 1]
    assert index_of.tolist() == [1, 0, 0, 1]
    for groups in ([[0, 1], [2]], [[0, 1]], [[0, 1], [1, 2]]):
        with pytest.raises(FixArgumentsError, match="once, in groups of equal size"):
            tables_of_groups(groups, 4)


@pytest.mark.parametrize("perm", [[(0, 1), (2, 1)], [(0, 1), (0, 2)], [(0, 8)], [(-1, 0)]])
def test_a_permutation_that_is_none_is_refused(perm):
    with pytest.raises(FixArgumentsError, match="must be unique"):
        on_x(lambda x: lax.ppermute(x, "x", perm), X)


def test_a_permutation_over_axes_in_another_order_is_refused():
    options = {"mesh": {"x": 4, "y": 2}, "in_specs": P("x", "y"), "out_specs": P("x", "y")}
    with pytest.raises(FixArgumentsError, match="order of the mesh"):
        on_x(lambda x: lax.ppermute(x, ("y", "x"), [(0, 1)]), X, **options)


def test_every_rule_is_a_primitive_of_jax():
    """A name that JAX drops or changes would be a rule that nothing reaches."""
    from jax._src.lax import parallel

    known = {p.name for p in vars(parallel).values() if hasattr(p, "bind") and hasattr(p, "name")}
    newer = {"pbroadcast_dynamic", "unreduced_pmax", "unreduced_pmin"}
    assert set(RULES) - known <= newer
    assert jax.__version__ < "0.12" or set(RULES) <= known
