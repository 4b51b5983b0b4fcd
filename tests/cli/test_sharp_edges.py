"""In the table, bevel is right in every row; plain vmap(grad) is wrong or slow in most."""

import jax
import pytest

from bevel.cli import sharp_edges


@pytest.fixture(scope="module", name="rows")
def fixture_rows():
    # The demo runs under a user's defaults, not under the suite's strict settings.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return {
            edge.name: sharp_edges.run_edge(edge)
            for edge in sharp_edges.EDGES
            if edge.name in CHECKED
        }


CHECKED = ("on (B, T, d) activations", "Explicit mesh, reshard", "inside shard_map")


@pytest.mark.full
def test_bevel_is_right_in_every_row(rows):
    assert set(rows) == set(CHECKED)
    for name, (_, error, *_rest) in rows.items():
        assert float(error) < 1e-3, name


@pytest.mark.full
def test_plain_vmap_is_slower_wrong_or_raises(rows):
    ours, plain = (float(rows["on (B, T, d) activations"][i][:-1]) for i in (2, 5))
    assert plain > 1.5 * ours
    assert rows["Explicit mesh, reshard"][4].endswith("Error")
    assert float(rows["inside shard_map"][4]) > 0.1


def test_a_step_that_raises_is_reported_by_its_exception():
    def broken(x):
        raise KeyError("no")

    assert sharp_edges.measure(broken, (1.0,), []) == ("KeyError", "", "")
