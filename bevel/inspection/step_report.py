"""The report of `inspect_step`: what one device sends, computes and holds in a step."""

import dataclasses
from typing import Any

from bevel.sharding.source_lines import SourceLine
from bevel.sharding.tables import rich_table, short, wrapped

# The fraction of `bytes` that each device sends around a ring of n devices.
SENT = {"all-reduce": lambda n: 2 * (n - 1) / n}
SENT |= dict.fromkeys(("collective-permute", "collective-broadcast", "send"), lambda n: 1.0)
NARROW = ("bf16", "f16", "f8", "f4")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled step."""

    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]  # of the larger side, on one device
    bytes: int  # of the larger side: the reduced or the gathered array
    group_size: int
    axes: tuple[str, ...] | None  # of the mesh; None if no mesh is known
    spans_axes: bool  # False if groups are only parts of these axes
    times: int  # per step: the product of trip counts; 0 in a branch that is not counted
    trip_counts: tuple[int | None, ...]  # of the enclosing loops, None if unknown
    in_branch: bool
    is_async: bool
    sliced_bytes: int  # the part of an all-reduce of which each device uses only its slice
    reducer: str | None  # add, maximum, ...
    is_widened: bool  # this backend computes a narrow sum in float32
    line: SourceLine | None
    operation: str  # JAX's name for it: jit(step)/.../dot_general
    name: str
    operands: tuple[str, ...]
    computation: str

    @property
    def sent(self) -> float:
        """Bytes that a device sends around a ring each time."""
        if self.group_size == 1:
            return 0.0
        share = SENT.get(self.kind, lambda n: (n - 1) / n)
        return self.bytes * share(self.group_size)

    @property
    def is_narrow_sum(self) -> bool:
        """Whether the program requests a sum in less than float32."""
        narrow = self.dtype.startswith(NARROW) or self.is_widened
        return narrow and self.reducer == "add" and self.group_size > 1


@dataclasses.dataclass(frozen=True)
class _Total:
    """The total of all collectives of one kind."""

    count: int
    bytes: int
    sent: float


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device according to the compiler. `peak` assumes that all are live at once."""

    arguments: int
    outputs: int
    aliased: int  # outputs that reuse donated arguments
    temporaries: int

    @property
    def peak(self) -> int:
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What one step sends, computes and holds on one device. Print it to see a table."""

    collectives: list[Collective]
    mesh: dict[str, int] | None
    devices: int
    flops: float  # of matrix products and convolutions, in loops as often as they run
    compiler_flops: float | None  # of everything according to the compiler: loops count once
    unread_products: list[str]  # library calls whose FLOPs are not in `flops`
    traffic: float  # bytes read from and written to memory, estimated from shapes
    memory: Memory | None

    @property
    def totals(self) -> dict[str, _Total]:
        """Totals by kind, each collective counted as often as it runs."""
        totals: dict[str, _Total] = {}
        for c in self.collectives:
            if c.times:
                old = totals.get(c.kind, _Total(0, 0, 0.0))
                totals[c.kind] = _Total(
                    old.count + c.times, old.bytes + c.times * c.bytes, old.sent + c.times * c.sent
                )
        return totals

    @property
    def bytes(self) -> int:
        return sum(total.bytes for total in self.totals.values())

    @property
    def sent(self) -> float:
        return sum(total.sent for total in self.totals.values())

    @property
    def unknown_loops(self) -> int:
        """Collectives in loops of unknown trip count. Each such loop is counted once."""
        return sum(None in c.trip_counts for c in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON or a report."""
        rows = [
            dataclasses.asdict(c) | {"sent": c.sent, "line": c.line and str(c.line)}
            for c in self.collectives
        ]
        return {
            "mesh": self.mesh,
            "devices": self.devices,
            "collectives": rows,
            "totals": {kind: dataclasses.asdict(t) for kind, t in self.totals.items()},
            "bytes": self.bytes,
            "sent": self.sent,
            "unknown_loops": self.unknown_loops,
            "flops": self.flops,
            "compiler_flops": self.compiler_flops,
            "unread_products": self.unread_products,
            "traffic": self.traffic,
            "memory": self.memory and dataclasses.asdict(self.memory) | {"peak": self.memory.peak},
        }

    def __str__(self) -> str:
        head = ["collective", "array", "bytes", "over", "times", "sent", "line", "operation"]
        rows = [
            [
                c.kind + (" (async)" if c.is_async else ""),
                " ".join(f"{c.dtype}[{','.join(map(str, s))}]" for s in c.shapes),
                short(c.bytes, "B"),
                _over(c),
                _times(c),
                short(c.times * c.sent, "B"),
                str(c.line or "-"),
                c.operation.split("/")[-1],
            ]
            for c in self.collectives
        ]
        mesh = self.mesh or f"{self.devices} devices"
        title = f"What one device sends in one step, on {mesh}"
        return wrapped(title, "", rich_table(head, rows, right=[2, 4, 5]), "", *self.summary())

    def summary(self) -> list[str]:
        lines = [
            f"{kind}: {t.count} of {short(t.bytes, 'B')}, {short(t.sent, 'B')} sent"
            for kind, t in self.totals.items()
        ]
        lines.append(f"{short(self.flops)} FLOPs in products, {short(self.traffic, 'B')} traffic")
        if self.memory:
            lines.append(
                f"{short(self.memory.peak, 'B')} at the peak, of which "
                f"{short(self.memory.temporaries, 'B')} temporary"
            )
        if self.unknown_loops:
            lines.append(
                f"{self.unknown_loops} collectives are in loops whose trip count is not known; "
                "each such loop is counted once"
            )
        if any(c.in_branch for c in self.collectives):
            lines.append("only one branch is counted of each conditional")
        if self.unread_products:
            lines.append(f"FLOPs of {', '.join(self.unread_products)} are not counted")
        return lines


def _over(c: Collective) -> str:
    if c.axes is None:
        return f"groups of {c.group_size}"
    return ", ".join(c.axes) + ("" if c.spans_axes else " (in part)") or "none"


def _times(c: Collective) -> str:
    if None in c.trip_counts:
        return f"{c.times} or more"
    return str(c.times) if c.times else "0 (other branch)"
