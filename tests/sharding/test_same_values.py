"""Values of the host are compared between processes by their hashes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from two_processes import launched

from bevel.errors import FixArgumentsError
from bevel.sharding import make_mesh, same_values
from bevel.sharding.same_values import put_same

MESH = make_mesh("data=4,model=2")
VALUES = [
    np.arange(64, dtype=np.float32).reshape(8, 8),
    np.arange(8.0),  # float64 becomes float32, as with jax.device_put
    jnp.ones((8, 2), jnp.bfloat16),
    np.zeros((0, 3), np.int32),
    3.5,
    np.arange(8) > 3,
]
SPECS = [P("data"), P("data"), P(None, "model"), P(), P(), P("model")]

PROGRAM = """
import json
import numpy as np
import training_runs as runs
from jax.experimental import multihost_utils
from bevel.errors import FixArgumentsError
from bevel.sharding import make_mesh, place

process = int(sys.argv[2])
gather, sizes = multihost_utils.process_allgather, []
def recorded(x, *options, **named):
    sizes.extend(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(x))
    return gather(x, *options, **named)
multihost_utils.process_allgather = recorded
params = {"w": np.arange(80_000, dtype=np.float32).reshape(80, 1000), "b": np.zeros(8)}
placed = place(params, make_mesh("data=8"), "fsdp")
local = [(s.index, np.asarray(s.data)) for s in placed["w"].addressable_shards]
assert all(np.array_equal(values, params["w"][index]) for index, values in local)
assert max(sizes) == 32, sizes
sizes.clear()
runs.trainer(mesh=make_mesh("data=8")).init(params)
assert max(sizes) == 32, sizes
try:
    place({"w": np.full((8, 8), float(process))}, make_mesh("data=8"))
except FixArgumentsError as error:
    print("refused:", error)
"""


@pytest.fixture
def gathered(monkeypatch):
    """Makes all values compared, as if the mesh were that of several processes."""
    sent = []

    def gather(x):
        sent.append(x)
        return np.stack([x, x])

    monkeypatch.setattr(same_values, "is_compared", lambda x, sharding: True)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    return sent


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_values_are_placed_as_by_jax_and_only_hashes_are_sent(number, gathered):
    x, sharding = VALUES[number], NamedSharding(MESH, SPECS[number])
    placed, expected = put_same(x, sharding), jax.device_put(x, sharding)
    assert (placed.dtype, placed.shape) == (expected.dtype, expected.shape)
    assert placed.sharding == expected.sharding and np.array_equal(placed, expected)
    assert [one.nbytes for one in gathered] == [32]


def test_values_that_differ_are_refused(monkeypatch, gathered):
    other = np.zeros(32, np.uint8)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda x: np.stack([x, other]))
    with pytest.raises(FixArgumentsError, match=r"float32\[8\] differs between process 0 and 1"):
        put_same(np.ones(8, np.float32), NamedSharding(MESH, P()))


def test_the_hash_covers_shape_and_values(gathered):
    for x in (np.zeros((2, 8)), np.zeros((8, 2)), np.ones((8, 2)), np.zeros((8, 2), np.int32)):
        put_same(x, NamedSharding(MESH, P()))
    assert len({one.tobytes() for one in gathered}) == 4


def test_one_process_sends_nothing(monkeypatch):
    monkeypatch.setattr(multihost_utils, "process_allgather", pytest.fail)
    placed = put_same(np.ones((8, 2)), NamedSharding(MESH, P("data")))
    again = put_same(placed, NamedSharding(MESH, P()))
    assert again.sharding.spec == P() and np.array_equal(again, np.ones((8, 2)))


@pytest.mark.full
def test_two_processes_place_parameters_without_gathering_them():
    for out in launched(PROGRAM):
        assert "refused: an array float32[8, 8] differs between process" in out
