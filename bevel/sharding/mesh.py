"""Make a mesh from the names and sizes of its axes: `make_mesh("data=4,model=2")`."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bevel.errors import FixArgumentsError

Axes = str | Mapping[str, int] | Sequence[tuple[str, int]]
AxisTypes = AxisType | str | Mapping[str, AxisType | str]

EXAMPLE = 'write, say, "data=4,model=2" or {"data": 4, "model": 2}'


def make_mesh(
    axes: Axes,
    *,
    axis_types: AxisTypes = AxisType.Auto,
    devices: Sequence[Any] | None = None,
    between: Axes | None = None,
) -> Mesh:
    """A mesh of devices with named axes.

    Args:
      axes: "data=4,model=2", {"data": 4, "model": 2} or (("data", 4), ("model", 2)), outermost
        first. One size may be -1: it takes the devices that the others leave.
      axis_types: Auto (the compiler places intermediate values), or Explicit (types of arrays say
        where they lie). For one axis by name, {"data": "explicit"}; the others are then Auto.
        `jax.make_mesh` makes Explicit axes, on which `with_sharding_constraint` raises.
      devices: all that JAX has if None. If there are more than the axes need, the first are taken.
      between: how axes are split between processes (or between slices, where devices belong to
        several): "data=2" says that of data=4, two parts lie in different processes and the rest
        within one. Slow links are between them. If None, they split the first axes, as far as
        sizes divide: the rows of a batch over "data" are then in one block per process.

    JAX's own `mesh_utils` puts devices that are near each other side by side.
    """
    found = list(jax.devices() if devices is None else devices)
    sizes = axis_sizes(axes, len(found))
    kinds = tuple(_types_of_axes(axis_types, sizes).values())
    shaped = arranged(sizes, _checked_devices(found, sizes), between)
    return Mesh(shaped, tuple(sizes), axis_types=kinds)


def axis_sizes(axes: Axes, devices: int | None = None) -> dict[str, int]:
    """Names and sizes of axes, however they are written; -1 becomes what is left of `devices`."""
    sizes = dict[str, int]()
    for name, size in pairs_of(axes):
        if not isinstance(name, str) or not name.isidentifier():
            raise FixArgumentsError(f"an axis of the mesh is named {name!r}: {EXAMPLE}.")
        if name in sizes:
            raise FixArgumentsError(f"the mesh has two axes named {name!r}: give each its own.")
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise FixArgumentsError(f"axis {name!r} has size {size!r}: {EXAMPLE}.")
        if size < 1 and size != -1:
            raise FixArgumentsError(
                f"axis {name!r} has size {size}: give 1 or more, or -1 for the devices that are "
                "left."
            )
        sizes[name] = int(size)
    if not sizes:
        raise FixArgumentsError(f"the mesh has no axes: {EXAMPLE}.")
    return _with_the_rest(sizes, devices)


def pairs_of(axes: Any) -> list[tuple[Any, Any]]:
    """Axes as pairs of a name and a size, not yet checked."""
    if isinstance(axes, Mapping):
        return list(axes.items())
    if isinstance(axes, str):
        parts = [part.strip() for part in axes.split(",") if part.strip()]
        read = [re.fullmatch(r"(\w+)\s*[=:]\s*(-?\d+)", part) for part in parts]
        for part, match in zip(parts, read, strict=True):
            if match is None:
                raise FixArgumentsError(f"{part!r} in axes={axes!r} is no name=size: {EXAMPLE}.")
        return [(match[1], int(match[2])) for match in read if match]
    try:
        return [(name, size) for name, size in axes]
    except (TypeError, ValueError):
        raise FixArgumentsError(f"axes={axes!r} names no axes: {EXAMPLE}.") from None


def _with_the_rest(sizes: dict[str, int], devices: int | None) -> dict[str, int]:
    """Sizes with -1 replaced by what is left."""
    open_axes = [name for name, size in sizes.items() if size == -1]
    if not open_axes:
        return sizes
    if len(open_axes) > 1:
        raise FixArgumentsError(f"axes {open_axes} all have size -1: one can take what is left.")
    taken = math.prod(size for size in sizes.values() if size != -1)
    if devices is None or devices % taken:
        count = "an unknown number of" if devices is None else devices
        raise FixArgumentsError(
            f"axis {open_axes[0]!r} has size -1, but {count} devices are not a multiple of the "
            f"{taken} that the other axes take: give its size."
        )
    return {name: devices // taken if size == -1 else size for name, size in sizes.items()}


def _types_of_axes(axis_types: AxisTypes, sizes: Mapping[str, int]) -> dict[str, AxisType]:
    """The type of each axis."""
    if isinstance(axis_types, Mapping):
        strange = sorted(set(axis_types) - set(sizes))
        if strange:
            raise FixArgumentsError(f"axis_types names {strange}, but axes are {tuple(sizes)}.")
        return {name: _axis_type(axis_types.get(name, AxisType.Auto)) for name in sizes}
    return dict.fromkeys(sizes, _axis_type(axis_types))


def _axis_type(given: Any) -> AxisType:
    names = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
    known: Any = names.get(given.lower()) if isinstance(given, str) else given
    if known not in names.values():
        raise FixArgumentsError(
            f"axis_types={given!r}: give AxisType.Auto or AxisType.Explicit (or 'auto', "
            "'explicit'), or a dict of them by axis. Manual axes exist within jax.shard_map only."
        )
    return known


def _checked_devices(found: list[Any], sizes: Mapping[str, int]) -> list[Any]:
    """The devices that a mesh takes, if there are enough and every process has one of them."""
    needed = math.prod(sizes.values())
    shown = _shown_axes(sizes)
    if needed > len(found):
        raise FixArgumentsError(
            f"the mesh {shown} needs {needed} devices, and there are {len(found)}. Make it smaller "
            "(one size may be -1), or, to try it on CPU, write before anything uses JAX: "
            f"jax.config.update('jax_num_cpu_devices', {needed})."
        )
    used = found[:needed]
    idle = {d.process_index for d in found} - {d.process_index for d in used}
    if idle:
        raise FixArgumentsError(
            f"the mesh {shown} takes {needed} of {len(found)} devices and leaves processes "
            f"{sorted(idle)} without one. Make it larger, or pass the devices= that it should take."
        )
    return used


def _group_attribute(devices: Sequence[Any], between: Axes | None) -> str:
    """What tells devices apart that slow links join: their slices, or else their processes.

    Processes on one slice have fast links between them. They count if `between` asks for it, or
    where devices know of no slices.
    """
    slices = {getattr(d, "slice_index", None) for d in devices}
    known = between is None and None not in slices
    return "slice_index" if len(slices) > 1 or known else "process_index"


def arranged(sizes: Mapping[str, int], devices: list[Any], between: Axes | None) -> np.ndarray:
    """Devices in the shape of the mesh, the slow links along the axes that `between` says."""
    attribute = _group_attribute(devices, between)
    groups = Counter(getattr(d, attribute) for d in devices)
    what = {"slice_index": "slices", "process_index": "processes"}[attribute]
    if len(set(groups.values())) > 1:
        raise FixArgumentsError(
            f"the mesh {_shown_axes(sizes)} takes {dict(sorted(groups.items()))} devices of the "
            f"{what} 0, 1, ...: pass devices= with as many of each."
        )
    if between is None:
        outer, left = dict[str, int](), len(groups)
        for name, size in sizes.items():
            outer[name] = math.gcd(size, left)
            left //= outer[name]
    else:
        outer = dict.fromkeys(sizes, 1) | axis_sizes(between)
    strange = set(outer) - set(sizes)
    if (
        strange
        or any(sizes[name] % outer[name] for name in sizes)
        or math.prod(outer.values()) != len(groups)
    ):
        raise FixArgumentsError(
            f"between={between!r} does not split the mesh {_shown_axes(sizes)} over {len(groups)} "
            f"{what}: name axes of the mesh, with sizes that divide theirs and multiply to "
            f"{len(groups)}."
        )
    return mesh_utils.create_hybrid_device_mesh(
        tuple(sizes[name] // outer[name] for name in sizes),
        tuple(outer[name] for name in sizes),
        devices,
        process_is_granule=attribute == "process_index",
        allow_split_physical_axes=True,
    )


def _shown_axes(sizes: Mapping[str, int]) -> str:
    """Axes as one writes them."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())
