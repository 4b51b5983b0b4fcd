"""Parse the device groups of collectives in HLO text, and find the mesh axes that they span.

Devices are numbered in the row-major order of the mesh.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from bevel.errors import FixArgumentsError

Groups = list[list[int]]


def parse_groups(text: str, devices: int) -> Groups:
    """Parses the value of `replica_groups=` in a program on `devices` devices.

    * `{{0,1},{2,3}}` lists the groups; `{}` is one group of all devices.
    * `[2,4]<=[4,2]T(1,0)` arranges 0, 1, 2, ... in the shape on the right, transposes it, and
      reshapes it to the shape on the left. Each row is a group.
    * `mesh['a'=4,'b'=2] {'a'}` groups devices that differ only in the named axes. `'a':(2)2` is
      a part of an axis: the second factor of sizes (2, 2, rest). `device_ids=(...)` renumbers
      the devices.
    """
    text = text.strip()
    if text.startswith("mesh"):
        return _mesh_groups(text)
    if "<=" in text:
        return _iota_groups(text)
    listed = re.findall(r"\{([\d,\s]+)\}", text)
    if listed:
        return [[int(n) for n in group.split(",")] for group in listed]
    if text == "{}":
        return [list(range(devices))]
    raise _unreadable(text)


def _iota_groups(text: str) -> Groups:
    found = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if found is None:
        raise _unreadable(text)
    groups, shape, permutation = (
        [int(n) for n in part.split(",")] if part else None for part in found.groups()
    )
    numbers = np.arange(math.prod(shape or ())).reshape(shape or ())
    return numbers.transpose(permutation).reshape(groups or ()).tolist()


def _mesh_groups(text: str) -> Groups:
    found = re.fullmatch(r"mesh\[(.*?)\](?:, ?device_ids=\((.*?)\))? ?\{(.*)\}", text)
    if found is None:
        raise _unreadable(text)
    sizes = {n: int(s) for n, s in re.findall(r"'?([^',=]+)'?=(\d+)", found[1])}
    numbers = np.arange(math.prod(sizes.values()))
    if found[2]:
        numbers = _renumbered(found[2], numbers)
    # Every axis is split into (before, part, after), so that each part is a dimension.
    parts = {n: (p, s) for n, p, s in re.findall(r"'?([^',:]+)'?:\((\d+)\)(\d+)", found[3])}
    named = re.findall(r"[^',]+", re.sub(r":\(\d+\)\d+", "", found[3]))
    if len(set(named)) < len(named) or not set(named) <= set(sizes):
        raise _unreadable(text)  # for example two parts of one axis
    shape: list[int] = []
    within: list[int] = []  # dimensions along which the members of a group differ
    for name, size in sizes.items():
        before, part = map(int, parts.get(name, (1, size)))
        within += [len(shape) + 1] if name in named else []
        shape += [before, part, size // before // part]
    others = [d for d in range(len(shape)) if d not in within]
    transposed = numbers.reshape(shape).transpose([*others, *within])
    return transposed.reshape(-1, math.prod(shape[d] for d in within)).tolist()


def _renumbered(text: str, numbers: np.ndarray) -> np.ndarray:
    """The devices in `device_ids=`: a transposed range such as `[4,2]T(1,0)`, or a list."""
    found = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if found is None:
        ids = [int(n) for n in re.findall(r"\d+", text)]
        if sorted(ids) != numbers.tolist():
            raise _unreadable(text)
        return np.array(ids)
    shape, permutation = (
        [int(n) for n in part.split(",")] if part else None for part in found.groups()
    )
    return numbers.reshape(shape or ()).transpose(permutation).ravel()


def parse_pairs(text: str) -> list[tuple[int, int]]:
    """Parses `source_target_pairs={{0,1},{1,0}}`."""
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text)]


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], bool]:
    """The mesh axes along which members of a group differ, and whether groups span all of them."""
    if max(map(max, groups)) >= math.prod(mesh.values()):
        raise FixArgumentsError(
            f"the compiled program uses device {max(map(max, groups))}, but the mesh "
            f"{dict(mesh)} has {math.prod(mesh.values())} devices: pass the mesh of this step."
        )
    coordinates = np.stack(np.unravel_index(np.array(groups), tuple(mesh.values())), axis=-1)
    differ = (coordinates != coordinates[:, :1]).any((0, 1))
    axes = tuple(name for name, differs in zip(mesh, differ, strict=True) if differs)
    return axes, len(groups[0]) == math.prod(mesh[a] for a in axes)


def _unreadable(text: str) -> FixArgumentsError:
    return FixArgumentsError(
        f"the device groups of a collective have an unknown notation: {text!r:.120}. "
        "It may come from a newer XLA: please report it."
    )
