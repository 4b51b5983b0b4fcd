"""Which devices a collective joins, in each notation of compiled text, and which mesh axes.

Devices are numbered by their place in the mesh, counted along its last axis first.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bevel.errors import FixArgumentsError

Groups = list[list[int]]


def parse_groups(text: str, devices: int) -> Groups:
    """The groups that `replica_groups=` lists, of a program on so many `devices`.

    * `{{0,1},{2,3}}`: as they are; `{}`: all devices in one;
    * `[2,4]<=[4,2]T(1,0)`: 0, 1, 2, ... in the shape on the right, its axes transposed, cut into
      the shape on the left, whose rows are the groups;
    * `mesh['a'=4,'b'=2] {'a'}`: those that differ in the named axes only. `'a':(2)2` is a part of
      an axis: seen as sizes (2, 2, rest), the second. `device_ids=(...)` renames the devices.
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
    shape, order, turned = (
        [int(n) for n in part.split(",")] if part else None for part in found.groups()
    )
    numbers = np.arange(math.prod(order or ())).reshape(order or ())
    return numbers.transpose(turned).reshape(shape or ()).tolist()


def _mesh_groups(text: str) -> Groups:
    found = re.fullmatch(r"mesh\[(.*?)\](?:, ?device_ids=\((.*?)\))? ?\{(.*)\}", text)
    if found is None:
        raise _unreadable(text)
    sizes = {n: int(s) for n, s in re.findall(r"'?([^',=]+)'?=(\d+)", found[1])}
    numbers = np.arange(math.prod(sizes.values()))
    if found[2]:
        numbers = _renamed(found[2], numbers)
    # Every axis is cut into (before, the part itself, after), so that parts are axes.
    parts = {n: (p, s) for n, p, s in re.findall(r"'?([^',:]+)'?:\((\d+)\)(\d+)", found[3])}
    named = re.findall(r"[^',]+", re.sub(r":\(\d+\)\d+", "", found[3]))
    if len(set(named)) < len(named) or not set(named) <= set(sizes):
        raise _unreadable(text)  # two parts of one axis
    shape: list[int] = []
    inside: list[int] = []
    for name, size in sizes.items():
        before, own = map(int, parts.get(name, (1, size)))
        inside += [len(shape) + 1] if name in named else []
        shape += [before, own, size // before // own]
    outside = [d for d in range(len(shape)) if d not in inside]
    turned = numbers.reshape(shape).transpose([*outside, *inside])
    return turned.reshape(-1, math.prod(shape[d] for d in inside)).tolist()


def _renamed(text: str, numbers: np.ndarray) -> np.ndarray:
    """The devices of a mesh that are not 0, 1, 2, ...: `[4,2]T(1,0)`, or listed."""
    turned = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if turned is None:
        listed = [int(n) for n in re.findall(r"\d+", text)]
        if sorted(listed) != numbers.tolist():
            raise _unreadable(text)
        return np.array(listed)
    shape, order = ([int(n) for n in part.split(",")] if part else None for part in turned.groups())
    return numbers.reshape(shape or ()).transpose(order).ravel()


def parse_pairs(text: str) -> list[tuple[int, int]]:
    """`source_target_pairs={{0,1},{1,0}}`."""
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text)]


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], bool]:
    """The mesh axes along which members of a group differ, and whether groups span them whole."""
    if max(map(max, groups)) >= math.prod(mesh.values()):
        raise FixArgumentsError(
            f"the compiled program joins device {max(map(max, groups))}, and the mesh "
            f"{dict(mesh)} has {math.prod(mesh.values())} devices: give the mesh of this step."
        )
    places = np.stack(np.unravel_index(np.array(groups), tuple(mesh.values())), axis=-1)
    differ = (places != places[:, :1]).any((0, 1))
    axes = tuple(name for name, moves in zip(mesh, differ, strict=True) if moves)
    return axes, len(groups[0]) == math.prod(mesh[a] for a in axes)


def axes_of_pairs(pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which values are passed on."""
    moved = [[source, target] for source, target in pairs if source != target]
    return axes_of_groups(moved, mesh)[0] if moved else ()


def _unreadable(text: str) -> FixArgumentsError:
    return FixArgumentsError(
        f"the devices of a collective are written in a way that is not known: {text!r:.120}. "
        "This is a newer notation of XLA: please report it."
    )
