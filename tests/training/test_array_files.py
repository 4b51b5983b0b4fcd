"""Arrays are written as Orbax writes them, piece by piece, and read a few at a time."""

import asyncio
import json
import math
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding import make_mesh
from bevel.training import array_files
from bevel.training.array_files import array_handler, read_arrays, writing_handler
from bevel.training.state import shaped


def arrays(axes=None):
    found = {
        "matrix": jnp.arange(24 * 16, dtype=jnp.float32).reshape(24, 16),
        "half": jnp.ones(32, jnp.bfloat16),
        "flags": jnp.arange(8) % 3 == 0,
        "number": jnp.int32(7),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4), 8),
    }
    if axes is None:
        return found
    mesh = make_mesh(axes)
    split = dict.fromkeys(("matrix", "half", "flags", "keys"), P("data"))
    specs = {name: NamedSharding(mesh, split.get(name, P())) for name in found}
    return {name: jax.device_put(x, specs[name]) for name, x in found.items()}


def written(folder, handler, tree):
    with ocp.Checkpointer(handler) as writer:
        writer.save(folder, args=ocp.args.PyTreeSave(tree))
    return folder


def content(folder):
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    plain = {name: data for name, data in files.items() if not name.startswith(("_", "commit"))}
    for name in ("_sharding", "array_metadatas/process_0"):
        plain[name] = json.loads(files[name])
    return plain


@pytest.mark.parametrize("axes", [None, "data=8", "data=4,model=2"])
def test_the_files_are_those_of_orbax(tmp_path, axes):
    tree = arrays(axes)
    ours = content(written(tmp_path / "ours", writing_handler(), tree))
    theirs = content(written(tmp_path / "theirs", array_handler(), tree))
    described = [tree.pop("array_metadatas/process_0") for tree in (ours, theirs)]
    if axes == "data=4,model=2":  # Orbax splits the shards among their replicas
        assert {name.split("/")[0] for name in ours} == {name.split("/")[0] for name in theirs}
    else:
        assert ours == theirs
        one, other = (sorted(map(str, x["array_metadatas"])) for x in described)
        assert one == other
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ocp.Checkpointer(array_handler()) as reader:
            found = reader.restore(tmp_path / "ours")
    for name, x in tree.items():
        same(found[name], x)


@pytest.mark.parametrize("saved", [None, "data=8"])
@pytest.mark.parametrize("wanted", [None, "data=4,model=2"])
def test_arrays_are_read_into_any_sharding(tmp_path, monkeypatch, saved, wanted):
    monkeypatch.setattr(array_files, "PIECE", 256)
    written(tmp_path / "run", writing_handler(), arrays(saved))
    like = arrays(wanted)
    found = read_arrays(tmp_path / "run", {name: shaped(x) for name, x in like.items()})
    for name, x in like.items():
        assert found[name].sharding.is_equivalent_to(x.sharding, x.ndim)
        same(found[name], x)


def same(a, b):
    if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_arrays_without_elements_are_refused(tmp_path):
    with pytest.raises(ValueError, match="without elements"):
        asyncio.run(array_files.PieceWriter().serialize([jnp.zeros((0, 3))], [None]))


def test_copies_of_a_checkpoint_are_freed_as_they_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "PIECE", 1 << 16)
    x = jnp.arange(1 << 18, dtype=jnp.float32).reshape(1 << 9, 1 << 9)
    taken = array_files.HostCopies(x, None)
    whole = sum(piece.nbytes for _, piece in taken.pieces())
    assert whole == x.nbytes and taken._shards == []


@pytest.mark.parametrize("axes", [None, "data=8", "data=2,fsdp=4"])
@pytest.mark.parametrize("piece", [64, 1 << 10, 1 << 24])
def test_pieces_put_together_are_the_array_and_no_two_shards_share_one(axes, piece, monkeypatch):
    monkeypatch.setattr(array_files, "PIECE", piece)
    for shape, spec in [
        ((24, 40), P("data")),
        ((8, 37), P(None)),
        ((16, 8, 3), P(None, "data")),
        ((), P()),
    ]:
        x = jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape)
        if axes:
            x = jax.device_put(x, NamedSharding(make_mesh(axes), spec))
        taken, found = array_files.HostCopies(x, None), np.full(shape, -1.0)
        files = set()
        for place, values in taken.pieces():
            assert (found[place] == -1).all()
            found[place] = values
            corner = tuple(s.start // c for s, c in zip(place, taken.chunks, strict=True))
            assert all(s.start % c == 0 for s, c in zip(place, taken.chunks, strict=True))
            assert corner not in files
            files.add(corner)
        assert np.array_equal(found, x)


@pytest.mark.parametrize(
    "shape, spec, piece, files",
    [
        ((8 * 1009, 32), P(("data", "model")), (1009, 4), 64),  # the rows of a shard are prime
        ((8 * 10007,), P(("data", "model")), (10007,), 8),  # nothing else can be split
        ((8 * 1024, 16), P(("data", "model")), (256, 16), 32),
        ((8 * 45, 8 * 91), P("data", "model"), (90, 52), 56),  # 8 parts: columns allow 7
        ((10007, 2), P(), (2002, 2), 5),
    ],
)
def test_a_shard_of_any_length_has_few_files(shape, spec, piece, files, monkeypatch):
    monkeypatch.setattr(array_files, "PIECE", 1 << 14)
    mesh = make_mesh("data=4,model=2") if "model" in str(spec) else make_mesh("data=8")
    x = jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))
    assert array_files.piece_shape(x) == piece
    assert math.prod(-(-n // k) for n, k in zip(shape, piece, strict=True)) == files


def test_arrays_are_read_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(array_files, "PIECE", 1000)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {
        f"x{k}": jax.ShapeDtypeStruct((100 * k,), np.float32, sharding=where) for k in range(1, 9)
    }
    groups = array_files.groups_to_read(shapes)
    assert [name for group in groups for name in group] == list(shapes)
    total = sum(4 * 100 * k for k in range(1, 9))
    for group in groups:
        size = sum(4 * x.size for x in group.values())
        assert len(group) == 1 or size <= max(1000, total / 8)


class _Shard:
    """A shard whose data count how often they are copied to the host."""

    def __init__(self, shard):
        self.replica_id, self.index, self.data, self._data = shard.replica_id, None, self, shard
        self.copies = 0

    def copy_to_host_async(self):
        self.copies += 1


@pytest.mark.parametrize("spec", [P(), P("data"), P("data", "model")])
def test_only_shards_that_are_written_are_copied_to_the_host(spec, monkeypatch):
    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(make_mesh("data=2,model=4"), spec))
    array = types.SimpleNamespace(shape=x.shape, dtype=x.dtype, size=x.size, sharding=x.sharding)
    array.addressable_shards = [_Shard(shard) for shard in x.addressable_shards]
    monkeypatch.setattr(array_files, "on_host", lambda data: np.ones((8, 8), np.float32))
    info = types.SimpleNamespace(name="x")
    asyncio.run(array_files.PieceWriter().serialize([array, array], [info, info]))
    for turn in range(2):
        written = array_files.shards_to_write(array, turn)
        assert all(shard.copies for shard in written)
    assert sum(shard.copies for shard in array.addressable_shards) == 2 * len(written)


def test_replicas_take_turns_and_write_each_shard_once():
    mesh = make_mesh("data=2,model=4")
    for spec, shape in ((P(), (8,)), (P("data"), (8, 8)), (P("data", "model"), (8, 8)), (P(), ())):
        x = jax.device_put(jnp.ones(shape), NamedSharding(mesh, spec))
        replicas = array_files.replicas_of(x)
        assert replicas == 1 + max(shard.replica_id for shard in x.addressable_shards)
        for turn in range(5):
            pieces = list(array_files.HostCopies(x, None, None, turn).pieces())
            assert sum(values.size for _, values in pieces) == x.size
