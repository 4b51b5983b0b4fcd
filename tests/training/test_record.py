"""What run.json says of where arrays lie and what ran. The rest is in test_run.py."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding import make_mesh
from bevel.sharding.table import shown_spec
from bevel.training.record import commit_of_caller, placement_rows, version_of


def test_a_row_for_every_array():
    sharding = NamedSharding(make_mesh("data=4,model=2"), P("data", None))
    rows = placement_rows({"a": jax.device_put(jnp.zeros((8, 2)), sharding), "b": jnp.zeros(3)})
    assert rows[0] == {
        "path": "a",
        "shape": [8, 2],
        "dtype": "float32",
        "spec": shown_spec(P("data", None)),
        "shard_shape": [2, 2],
        "bytes_per_device": 16,
    }
    assert rows[1]["spec"] == "one device"


def test_versions_and_commit_are_none_where_there_are_none(tmp_path, monkeypatch):
    assert version_of("jax") == jax.__version__ and version_of("no-such-package") is None
    monkeypatch.chdir(tmp_path)
    assert commit_of_caller() is None
