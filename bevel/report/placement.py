"""Where arrays are placed on the mesh, and what a step sends between devices, as rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bevel.sharding.tables import short, shown_bytes, shown_shape

MOST_ROWS = 200


def mesh_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The mesh axes and their sizes. Empty for a run without a mesh."""
    mesh = (record.get("surroundings") or {}).get("mesh") or {}
    return {str(name): int(size) for name, (size, _) in mesh.items()}


def array_rows(arrays: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per array, of the first MOST_ROWS."""

    def cell(row: Mapping[str, Any], name: str, show: Callable[[Any], str]) -> str:
        return "?" if row.get(name) is None else show(row[name])

    return [
        [
            str(row.get("path") or "(root)"),
            f"{row.get('dtype', '')} {cell(row, 'shape', shown_shape)}",
            str(row.get("spec") or "-"),
            cell(row, "shard_shape", shown_shape),
            cell(row, "bytes_per_device", shown_bytes),
            cell(row, "replication", "{:g}".format),
        ]
        for row in arrays[:MOST_ROWS]
    ]


def collective_rows(found: Sequence[Mapping[str, Any]] | None) -> list[list[str]] | None:
    """One row per collective, of the first MOST_ROWS. None if the step was not inspected."""
    if found is None:
        return None
    rows = []
    for one in found[:MOST_ROWS]:
        axes, size = one.get("axes"), one.get("group_size")
        over = f"groups of {size or '?'}" if axes is None else ", ".join(axes) or "none"
        shapes = " ".join(f"[{','.join(map(str, shape))}]" for shape in one.get("shapes") or ())
        sent = one.get("sent")
        rows.append(
            [
                str(one.get("kind")),
                f"{one.get('dtype', '')}{shapes}",
                short(one.get("bytes") or 0, "B"),
                over,
                str(one.get("times")),
                "?" if sent is None else short(sent * (one.get("times") or 0), "B"),
                str(one.get("line") or "-"),
                str(one.get("operation") or "-").split("/")[-1],
            ]
        )
    return rows
