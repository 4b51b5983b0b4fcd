"""Writes and reads the arrays of a checkpoint with bounded memory, as zarr that Orbax can read.

Saving copies each array to the host once, so that the next step may donate it. The copies are
written, and freed, a few pieces at a time. A piece is a part of one shard and becomes one file.
Restoring reads a few arrays at a time, each directly into its final sharding.
"""

import asyncio
import base64
import contextlib
import ctypes
import gc
import itertools
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.sharding import NamedSharding

# A piece of a shard is about this large, if the shape of the shard allows it.
PIECE = 2**24
# Pieces are at most this many times smaller or larger than that. Otherwise a shard is one piece.
MOST_EXCESS = 16
# This fraction of all bytes may be compressed, or read, at the same time.
UNDER_WAY = 1 / 8
# Where Orbax looks for the shardings of arrays, and for what else it knows about them.
SHARDINGS, DESCRIPTIONS = "_sharding", "array_metadatas"
_Index = tuple[slice, ...]


def array_handler() -> ocp.PyTreeCheckpointHandler:
    """Orbax's own handler of arrays, which reads what `writing_handler` writes."""
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False)


def writing_handler() -> ocp.PyTreeCheckpointHandler:
    """A handler that writes arrays with bounded memory."""
    registry = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, PieceWriter()), (np.ndarray, ocp.type_handlers.NumpyHandler())
    )
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, use_zarr3=False, type_handler_registry=registry
    )


class PieceWriter(ocp.type_handlers.ArrayHandler):
    """Writes arrays piece by piece, from copies on the host."""

    async def serialize(
        self, values: Sequence[jax.Array], infos: Sequence[Any], args: Any = None
    ) -> list[Any]:
        del args
        if not all(x.size for x in values):
            raise ValueError("arrays without elements cannot be saved")
        plain = [jax.random.key_data(x) if _is_key(x) else x for x in values]
        for turn, x in enumerate(plain):
            for shard in shards_to_write(x, turn):
                # Begin all transfers before waiting for the first. Transfer shards: for whole
                # arrays, JAX would make one more copy.
                shard.data.copy_to_host_async()
        shardings = {info.name: _sharding_text(x) for x, info in zip(plain, infos, strict=True)}
        impls = [str(jax.random.key_impl(x)) if _is_key(x) else None for x in values]
        zipped = zip(plain, infos, impls, strict=True)
        taken = [HostCopies(x, info, impl, turn) for turn, (x, info, impl) in enumerate(zipped)]
        writing = self._write(taken, shardings)
        return [ocp.future.CommitFutureAwaitingContractedSignals(writing, name="bevel_pieces")]

    async def _write(self, taken: list["HostCopies"], shardings: dict[str, str | None]) -> None:
        if not taken:
            return
        limit = max(PIECE, int(UNDER_WAY * sum(array.bytes for array in taken)))
        for array in taken:
            await array.info.await_path_creation()
        folder = Path(taken[0].info.parent_dir)
        if jax.process_index() == 0:
            known = {name: text for name, text in shardings.items() if text is not None}
            encoded = {base64.urlsafe_b64encode(k.encode()).decode(): v for k, v in known.items()}
            (folder / SHARDINGS).write_text(json.dumps(encoded))
        (folder / DESCRIPTIONS).mkdir(exist_ok=True)
        described = {"array_metadatas": [array.description() for array in taken]}
        (folder / DESCRIPTIONS / f"process_{jax.process_index()}").write_text(json.dumps(described))
        waiting: list[Any] = []
        size = 0
        while taken:
            array = taken.pop(0)
            target = await array.opened()
            for index, piece in array.pieces():
                if size + piece.nbytes > limit:
                    await asyncio.gather(*waiting)
                    waiting, size = [], 0
                size += piece.nbytes
                write = target[index].write(piece, can_reference_source_data_indefinitely=True)
                waiting.append(write)
                del piece, write
        await asyncio.gather(*waiting)
        _return_freed_memory()


def shards_to_write(x: jax.Array, turn: int) -> list[Any]:
    """The shards of an array that this process writes.

    Replicas take turns: those with the number `turn`, modulo their number, write this array.
    """
    writes = turn % replicas_of(x)
    return [shard for shard in x.addressable_shards if shard.replica_id == writes]


class HostCopies:
    """Copies on the host of the shards of an array that this process writes."""

    def __init__(self, x: jax.Array, info: Any, key_impl: str | None = None, turn: int = 0) -> None:
        self.info, self.dtype, self._key_impl = info, jnp.dtype(x.dtype).name, key_impl
        self.shape, self.chunks = x.shape, piece_shape(x)
        self._shards = [(shard.index, on_host(shard.data)) for shard in shards_to_write(x, turn)]
        self.bytes = sum(data.nbytes for _, data in self._shards)

    async def opened(self) -> Any:
        spec = {
            "driver": "zarr",
            "dtype": self.dtype,
            "kvstore": {"driver": "file", "path": f"{self.info.parent_dir / self.info.name}/"},
            "metadata": {
                "shape": list(self.shape),
                "chunks": list(self.chunks),
                "compressor": {"id": "zstd", "level": 1},
            },
        }
        context = self.info.ts_context
        if jax.process_index() == 0:
            await tensorstore.open(spec, create=True, open=True, context=context)
        return await tensorstore.open(spec, open=True, assume_metadata=True, context=context)

    def description(self) -> dict[str, Any]:
        """What Orbax reads about the array, such as that it is the data of a random key."""
        extra = self._key_impl and {"random_key_impl": self._key_impl}
        fields = {"param_name": self.info.name, "write_shape": self.chunks}
        fields |= {"chunk_shape": self.chunks, "ext_metadata": extra}
        return {"array_metadata": fields}

    def pieces(self) -> Iterator[tuple[_Index, np.ndarray]]:
        """Yields the place and values of each piece. The copies of a shard are freed after it."""
        while self._shards:
            index, data = self._shards.pop()
            starts = [part.start or 0 for part in index]
            steps = [range(0, n, chunk) for n, chunk in zip(data.shape, self.chunks, strict=True)]
            for corner in itertools.product(*steps):
                inside = tuple(
                    slice(a, a + chunk) for a, chunk in zip(corner, self.chunks, strict=True)
                )
                piece = data[inside]
                place = tuple(
                    slice(start + a, start + a + n)
                    for start, a, n in zip(starts, corner, piece.shape, strict=True)
                )
                yield place, piece


def piece_shape(x: jax.Array) -> tuple[int, ...]:
    """The shape of the pieces of an array: its shard, split along one dimension if it is large.

    A dimension that is split over devices is only divided into equal parts, because two processes
    must not write to one file. Its length may then allow no pieces of the wanted size. The
    dimension whose pieces come closest to that size is divided; within a factor of two, the longest
    one. If even that would make many small files, the shard stays whole.
    """
    shard = x.sharding.shard_shape(x.shape)
    size = math.prod(shard) * x.dtype.itemsize
    wanted = -(-size // PIECE)
    pieces = tuple(max(1, n) for n in shard)
    if wanted <= 1:
        return pieces
    parts_along = [
        _parts(length, wanted, equal=length != full)
        for length, full in zip(shard, x.shape, strict=True)
    ]
    axis = min(
        range(len(shard)), key=lambda d: (max(2, _excess(parts_along[d], wanted)), -shard[d])
    )
    if _excess(parts_along[axis], wanted) > MOST_EXCESS:
        return pieces
    return (*pieces[:axis], -(-shard[axis] // parts_along[axis]), *pieces[axis + 1 :])


def _parts(length: int, wanted: int, *, equal: bool) -> int:
    """Returns the possible number of parts of a dimension that is closest to `wanted`."""
    if not equal:
        return min(wanted, length)
    divisors = (
        d for k in range(1, math.isqrt(length) + 1) if length % k == 0 for d in (k, length // k)
    )
    return min(divisors, key=lambda parts: _excess(parts, wanted))


def _excess(parts: int, wanted: int) -> float:
    """The factor between two numbers of parts."""
    return max(parts / wanted, wanted / parts)


def replicas_of(x: jax.Array) -> int:
    """The number of devices that hold each shard."""
    shard = x.sharding.shard_shape(x.shape)
    shards = math.prod(-(-n // part) for n, part in zip(x.shape, shard, strict=True) if part)
    return max(1, len(x.sharding.device_set) // shards)


def on_host(x: jax.Array) -> np.ndarray:
    """Copies an array to the host. On a CPU, NumPy could share memory that a step then reuses."""
    on_cpu = next(iter(x.devices())).platform == "cpu"
    on_device = x.sharding.memory_kind in (None, "device")
    return np.asarray(x) if on_device and not on_cpu else np.array(x, copy=True)


def _is_key(x: jax.Array) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _sharding_text(x: jax.Array) -> str | None:
    """The sharding of an array as Orbax records it."""
    kinds = ocp.metadata.NamedShardingMetadata, ocp.metadata.SingleDeviceShardingMetadata
    kind = kinds[0] if isinstance(x.sharding, NamedSharding) else kinds[1]
    try:
        return str(kind.from_jax_sharding(x.sharding).to_serialized_string())
    except (AttributeError, TypeError, ValueError):
        return None  # Orbax then needs a sharding when it restores the array


def read_arrays(folder: Path, shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads arrays by name, into the shardings of `shapes`, a few at a time."""
    arrays: dict[str, jax.Array] = {}
    with warnings.catch_warnings(), ocp.Checkpointer(array_handler()) as reader:
        warnings.simplefilter("ignore")  # Orbax warns if the checkpoint is from another mesh
        for some in groups_to_read(shapes):
            restore_args = ocp.checkpoint_utils.construct_restore_args(some)
            partial = len(some) < len(shapes)
            args = ocp.args.PyTreeRestore(
                item=some, restore_args=restore_args, partial_restore=partial
            )
            arrays |= reader.restore(folder, args=args)
            jax.block_until_ready(arrays)
            gc.collect()  # cycles of Orbax hold the copies on the host
            _return_freed_memory()
    return arrays


def groups_to_read(
    shapes: dict[str, jax.ShapeDtypeStruct],
) -> list[dict[str, jax.ShapeDtypeStruct]]:
    """Splits arrays into groups that are read at the same time."""
    sizes = {name: _bytes_here(x) for name, x in shapes.items()}
    limit = max(PIECE, int(UNDER_WAY * sum(sizes.values())))
    groups: list[dict[str, jax.ShapeDtypeStruct]] = []
    size = limit
    for name, x in shapes.items():
        if size + sizes[name] > limit:
            groups.append({})
            size = 0
        groups[-1][name] = x
        size += sizes[name]
    return groups


def _bytes_here(x: jax.ShapeDtypeStruct) -> int:
    """The bytes of an array that this process reads. Replicas are read once."""
    sharding: Any = x.sharding
    indices = sharding.addressable_devices_indices_map(x.shape).values()
    shards = len({str(index) for index in indices})
    width = getattr(x.dtype, "itemsize", 8)
    return shards * math.prod(sharding.shard_shape(x.shape)) * width


def _return_freed_memory() -> None:
    """Returns freed memory to the system. glibc would keep it for the thread that freed it."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
