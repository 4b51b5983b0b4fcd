"""Create a mesh from the names and sizes of its axes: `make_mesh("data=4,model=2")`."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bevel.checks import shown, whole_number
from bevel.errors import FixArgumentsError

Axes = str | Mapping[str, int] | Sequence[tuple[str, int]]
AxisTypes = AxisType | str | Mapping[str, AxisType | str]

EXAMPLE = 'write, for example, "data=4,model=2" or {"data": 4, "model": 2}'


def make_mesh(
    axes: Axes,
    *,
    axis_types: AxisTypes = AxisType.Auto,
    devices: Sequence[Any] | None = None,
    between: Axes | None = None,
) -> Mesh:
    """Creates a mesh of devices with named axes.

    Args:
      axes: "data=4,model=2", {"data": 4, "model": 2} or (("data", 4), ("model", 2)), outermost
        first. One size may be -1, which uses all devices that the other axes leave.
      axis_types: Auto (the compiler chooses the sharding of intermediate values) or Explicit
        (shardings are part of array types). Use {"data": "explicit"} to set the type of one axis;
        the others are Auto. Note that `jax.make_mesh` creates Explicit axes by default, on which
        `with_sharding_constraint` raises.
      devices: the devices to use, by default all of `jax.devices()`. If there are more than the
        axes need, the first ones are used.
      between: which axes are split between processes, or between slices if the devices belong to
        several, since the links between those are slow. With data=4, "data=2" means that "data"
        consists of two parts in different processes. By default the first axes are split, as far
        as their sizes divide, so each process holds one contiguous block of a batch over "data".

    Devices are arranged by JAX's `mesh_utils`, which puts nearby devices next to each other.
    """
    available = jax.devices() if devices is None else _checked_devices(devices)
    sizes = axis_sizes(axes, len(available))
    types = tuple(_types_of_axes(axis_types, sizes).values())
    device_array = arrange_devices(sizes, _used_devices(available, sizes), between)
    return Mesh(device_array, tuple(sizes), axis_types=types)


_MOST_DEVICES = 2**31 - 1


def axis_sizes(axes: Axes, devices: int | None = None) -> dict[str, int]:
    """The size of each axis; -1 is replaced by the number of `devices` that are left."""
    sizes = dict[str, int]()
    if devices is not None:
        whole_number("devices", devices, 1, _MOST_DEVICES)
    for name, size in pairs_of(axes):
        if not isinstance(name, str) or not name.isidentifier():
            raise FixArgumentsError(f"{shown(name)} is not a valid axis name: {EXAMPLE}.")
        if name in sizes:
            raise FixArgumentsError(f"two axes are named {name!r}: give each axis its own name.")
        if isinstance(size, bool | np.timedelta64) or not isinstance(size, int | np.integer):
            raise FixArgumentsError(
                f"axis {name!r} has size {shown(size)}, not an integer: {EXAMPLE}."
            )
        if size < 1 and size != -1:
            raise FixArgumentsError(
                f"axis {name!r} has size {shown(size)}: use 1 or more, or -1 for the remaining "
                "devices."
            )
        if size > _MOST_DEVICES:
            raise FixArgumentsError(
                f"axis {name!r} has size {shown(size)}: no mesh has more than {_MOST_DEVICES} "
                "devices."
            )
        sizes[name] = int(size)
    if not sizes:
        raise FixArgumentsError(f"the mesh has no axes: {EXAMPLE}.")
    return _fill_open_axis(sizes, devices)


def pairs_of(axes: Any) -> list[tuple[Any, Any]]:
    """Axes as (name, size) pairs; neither is validated."""
    if isinstance(axes, Mapping):
        return list(axes.items())
    if isinstance(axes, str):
        parts = [part.strip() for part in axes.split(",") if part.strip()]
        read = [re.fullmatch(r"(\w+)\s*[=:]\s*(-?\d+)", part) for part in parts]
        for part, match in zip(parts, read, strict=True):
            if match is None:
                raise FixArgumentsError(
                    f"{shown(part)} in axes={shown(axes)} is not name=size: {EXAMPLE}."
                )
        # No size has more than 18 digits, and Python refuses to convert thousands of them.
        return [(match[1], int(match[2][:19])) for match in read if match]
    try:
        return [(name, size) for name, size in axes]
    except Exception:  # whatever the value raises when it is read
        raise FixArgumentsError(f"axes={shown(axes)} is not a mesh: {EXAMPLE}.") from None


def _fill_open_axis(sizes: dict[str, int], devices: int | None) -> dict[str, int]:
    """Replaces a size of -1 by the number of devices that the other axes leave."""
    open_axes = [name for name, size in sizes.items() if size == -1]
    if not open_axes:
        return sizes
    if len(open_axes) > 1:
        raise FixArgumentsError(f"axes {open_axes} have size -1: set the sizes of all but one.")
    taken = math.prod(size for size in sizes.values() if size != -1)
    if devices is None or devices % taken:
        count = "an unknown number of" if devices is None else devices
        raise FixArgumentsError(
            f"axis {open_axes[0]!r} has size -1, but {count} devices is not a multiple of the "
            f"{taken} that the other axes use: set its size."
        )
    return {name: devices // taken if size == -1 else size for name, size in sizes.items()}


def _types_of_axes(axis_types: AxisTypes, sizes: Mapping[str, int]) -> dict[str, AxisType]:
    if isinstance(axis_types, Mapping):
        unknown = ", ".join(sorted(map(shown, set(axis_types) - set(sizes))))
        if unknown:
            raise FixArgumentsError(f"axis_types names {unknown}, but axes are {tuple(sizes)}.")
        return {name: _axis_type(axis_types.get(name, AxisType.Auto)) for name in sizes}
    return dict.fromkeys(sizes, _axis_type(axis_types))


def _axis_type(axis_type: Any) -> AxisType:
    names = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
    known: Any = names.get(axis_type.lower()) if isinstance(axis_type, str) else axis_type
    if not any(known is kind for kind in names.values()):
        raise FixArgumentsError(
            f"axis_types={shown(axis_type)}: use AxisType.Auto or AxisType.Explicit (or 'auto', "
            "'explicit'), or a dict of them by axis. Manual axes exist only inside jax.shard_map."
        )
    return known


def _checked_devices(devices: Any) -> list[Any]:
    try:
        found = list(devices)
    except Exception:  # whatever the value raises when it is read
        found = [None]
    # Descriptions of devices (`jax.experimental.topologies`) are not jax.Device objects.
    if not all(hasattr(device, "process_index") for device in found):
        raise FixArgumentsError(f"devices={shown(devices)}: pass a list of jax.devices().")
    return found


def _used_devices(available: list[Any], sizes: Mapping[str, int]) -> list[Any]:
    """The devices of the mesh. Raises if there are too few, or if a process would have none."""
    needed = math.prod(sizes.values())
    axes = _format_axes(sizes)
    if needed > len(available):
        raise FixArgumentsError(
            f"the mesh {axes} needs {needed} devices, but there are {len(available)}. Make it "
            "smaller (one size may be -1). To try it on CPU, write this before anything uses JAX: "
            f"jax.config.update('jax_num_cpu_devices', {needed})."
        )
    used = available[:needed]
    idle = {d.process_index for d in available} - {d.process_index for d in used}
    if idle:
        raise FixArgumentsError(
            f"the mesh {axes} uses {needed} of {len(available)} devices and leaves processes "
            f"{sorted(idle)} without a device. Make it larger, or pass the devices to use as "
            "devices=."
        )
    return used


def _group_attribute(devices: Sequence[Any], between: Axes | None) -> str:
    """The device attribute that differs across slow links: the slice, or else the process.

    Processes on one slice are connected by fast links, so processes are used only if there is
    one slice and `between` is given, or if the devices have no slices.
    """
    slices = {getattr(d, "slice_index", None) for d in devices}
    known = between is None and None not in slices
    return "slice_index" if len(slices) > 1 or known else "process_index"


def arrange_devices(
    sizes: Mapping[str, int], devices: list[Any], between: Axes | None
) -> np.ndarray:
    """Arranges devices in the shape of the mesh, with slow links along the axes of `between`."""
    attribute = _group_attribute(devices, between)
    groups = Counter(getattr(d, attribute) for d in devices)
    what = {"slice_index": "slices", "process_index": "processes"}[attribute]
    if len(set(groups.values())) > 1:
        raise FixArgumentsError(
            f"the mesh {_format_axes(sizes)} uses a different number of devices from each of the "
            f"{what}: {dict(sorted(groups.items()))}. Pass devices= with equally many from each."
        )
    if between is None:
        outer, left = dict[str, int](), len(groups)
        for name, size in sizes.items():
            outer[name] = math.gcd(size, left)
            left //= outer[name]
    else:
        outer = dict.fromkeys(sizes, 1) | axis_sizes(between)
    if (
        set(outer) - set(sizes)
        or any(sizes[name] % outer[name] for name in sizes)
        or math.prod(outer.values()) != len(groups)
    ):
        raise FixArgumentsError(
            f"between={shown(between)} does not split the mesh {_format_axes(sizes)} over "
            f"{len(groups)} {what}: name axes of the mesh, with sizes that divide theirs and "
            f"whose product is {len(groups)}."
        )
    return mesh_utils.create_hybrid_device_mesh(
        tuple(sizes[name] // outer[name] for name in sizes),
        tuple(outer[name] for name in sizes),
        devices,
        process_is_granule=attribute == "process_index",
        allow_split_physical_axes=True,
    )


def _format_axes(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())
