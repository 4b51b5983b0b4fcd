"""Two processes draw the same noise as one, without communication."""

import json

import numpy as np
import pytest
from two_processes import launched

from bevel.noise_addition import gaussian_privatizer

pytestmark = pytest.mark.full  # several processes

# Each process writes its shards of a split and of a replicated leaf, and the key that both draw, to
# a file, because libraries below JAX print to stdout.
PROGRAM = """
import json, pathlib
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from bevel.noise_addition import gaussian_privatizer, keys

mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
grads = {
    name: jax.make_array_from_callback(
        (16, 3), NamedSharding(mesh, spec), lambda index: np.ones((16, 3), np.float32)[index]
    )
    for name, spec in (("split", P("data")), ("whole", P()))
}
privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
update = jax.jit(privatizer.update)
noised, state = update(grads, privatizer.init(grads))
noised, state = update(grads, state)
facts = [
    [name, shard.index[0].start or 0, shard.data.tolist()]
    for name, leaf in noised.items()
    for shard in leaf.addressable_shards
]
facts.append(["key", 0, np.asarray(jax.random.key_data(keys.new_key())).tolist()])
pathlib.Path(sys.argv[3], f"{sys.argv[2]}.json").write_text(json.dumps(facts))
"""


def run_two_processes(folder):
    launched(PROGRAM, folder)
    facts = [json.loads((folder / f"{process}.json").read_text()) for process in range(2)]
    return [(name, start, np.array(values)) for own in facts for name, start, values in own]


def test_two_processes_draw_the_noise_of_one(tmp_path):
    grads = {name: np.ones((16, 3), np.float32) for name in ("split", "whole")}
    privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
    _, state = privatizer.update(grads, privatizer.init(grads))
    expected, _ = privatizer.update(grads, state)
    found = run_two_processes(tmp_path)
    for name in grads:
        shards = [(start, x) for kind, start, x in found if kind == name]
        assert len(shards) == 8
        for start, x in shards:
            part = expected[name][start : start + len(x)]
            np.testing.assert_allclose(x, part, rtol=2e-6, atol=2e-6)
        if name == "whole":
            assert all(np.array_equal(x, shards[0][1]) for _, x in shards)
        else:
            rows = {start for start, _ in shards}
            assert rows == set(range(0, 16, 2))
    # Nothing that one process draws is drawn by the other.
    assert len(np.unique(expected["split"])) == 48
    first, second = (x for kind, _, x in found if kind == "key")
    assert len(first) == 8 and np.array_equal(first, second)
