"""A step on more and more devices, on paper: tables, a plot, and how far to trust them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bevel.sharding.tables import rich_table, short, wrapped

LABEL = (
    "Compiled for virtual CPU devices and never run: what is sent and held is as the CPU's "
    "partitioner has it. Another backend fuses more, and may hold and send less. Times are "
    "estimates from the given speeds."
)


@dataclasses.dataclass(frozen=True)
class Speeds:
    """What a device can do, in FLOPs and bytes per second. The defaults are those of an H200.

    Attributes:
      flops: of matrix products; the default is what bfloat16 was measured at.
      memory: of reading and writing its memory; the default was measured.
      link: of sending to a neighbour, in one direction: a number, or one for each mesh axis. The
        default is NVLink's nominal one: axes that cross hosts need their own.
      latency: seconds that every collective takes, however small.
    """

    flops: float = 7.7e14
    memory: float = 4.3e12
    link: float | Mapping[str, float] = 4.5e11
    latency: float = 1e-5

    def of_axes(self, axes: Sequence[str]) -> float:
        """The slowest link of a collective."""
        if isinstance(self.link, Mapping):
            return min((self.link[a] for a in axes), default=math.inf)
        return self.link


@dataclasses.dataclass(frozen=True)
class ScaleRow:
    """One mesh and batch; figures are of one device and one step."""

    scaling: str  # weak: as many examples per device; strong: as many in all
    devices: int
    mesh: dict[str, int]
    batch: int
    extrapolated: bool
    held: dict[str, float]  # bytes, by role
    activations: float  # and other temporary bytes
    peak: float
    flops: float
    traffic: float
    collectives: dict[str, dict[str, float]]  # `kind over axes` to count, bytes, sent
    error: str | None = None

    def times(self, speeds: Speeds) -> dict[str, float]:
        """Seconds: of products, of memory, of links, and of a step with all and no overlap."""
        link = sum(
            c["sent"] / speeds.of_axes(name.split(" over ")[1].split("+"))
            + c["count"] * speeds.latency
            for name, c in self.collectives.items()
        )
        compute, memory = self.flops / speeds.flops, self.traffic / speeds.memory
        local = max(compute, memory)
        return {
            "products": compute,
            "memory": memory,
            "links": link,
            "overlapped": max(local, link),
            "serial": local + link,
        }

    def sent(self) -> dict[str, float]:
        """Bytes by kind of collective."""
        found: dict[str, float] = {}
        for name, c in self.collectives.items():
            kind = name.split(" over ")[0]
            found[kind] = found.get(kind, 0.0) + c["sent"]
        return found


def failed(scaling: str, devices: int, mesh: dict[str, int], batch: int, error: str) -> ScaleRow:
    return ScaleRow(scaling, devices, mesh, batch, False, {}, 0.0, 0.0, 0.0, 0.0, {}, error)


@dataclasses.dataclass(frozen=True)
class ScaleReport:
    """Weak and strong scaling of a step. Print it, plot it, or take `to_dict()`."""

    rows: list[ScaleRow]
    speeds: Speeds
    notes: list[str]

    def of(self, scaling: str) -> list[ScaleRow]:
        return [row for row in self.rows if row.scaling == scaling]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON or a report."""
        rows = [
            dataclasses.asdict(row)
            | ({} if row.error else {"seconds": row.times(self.speeds), "sent": row.sent()})
            for row in self.rows
        ]
        speeds = dataclasses.asdict(self.speeds)
        return {"label": LABEL, "rows": rows, "speeds": speeds, "notes": self.notes}

    def __str__(self) -> str:
        parts: list[Any] = []
        for scaling, title in (
            ("weak", "Weak scaling: as many examples on each device"),
            ("strong", "Strong scaling: as many examples in all"),
        ):
            parts += [title, "", self.table(scaling), ""]
        return wrapped(*parts, LABEL, *self.notes, width=200)

    def table(self, scaling: str) -> Any:
        rows = self.of(scaling)
        kinds = sorted({kind for row in rows for kind in row.sent()})
        head = ["devices", "mesh", "batch", "params", "optimizer", "noise", "activations", "peak"]
        head += ["FLOPs", *(f"{kind} sent" for kind in kinds), "products", "memory", "links"]
        head += ["step", "examples/s", "efficiency"]
        right = [i for i, name in enumerate(head) if name != "mesh"]
        return rich_table(head, [self.cells(row, kinds) for row in rows], right)

    def cells(self, row: ScaleRow, kinds: list[str]) -> list[str]:
        mesh = ", ".join(f"{axis}={size}" for axis, size in row.mesh.items())
        first = [f"~{row.devices}" if row.extrapolated else str(row.devices), mesh, str(row.batch)]
        if row.error:
            return [*first, *["-"] * (12 + len(kinds))]
        held = [short(row.held.get(role, 0.0), "B") for role in ("params", "optimizer", "noise")]
        sent = row.sent()
        t = row.times(self.speeds)
        return [
            *first,
            *held,
            short(row.activations, "B"),
            short(row.peak, "B"),
            short(row.flops),
            *(short(sent.get(kind, 0.0), "B") for kind in kinds),
            *(seconds(t[name]) for name in ("products", "memory", "links")),
            f"{seconds(t['overlapped'])} to {seconds(t['serial'])}",
            short(row.batch / t["serial"]) if t["serial"] else "-",
            f"{100 * self.efficiency(row):.0f}%",
        ]

    def efficiency(self, row: ScaleRow) -> float:
        """Examples per second and device, of those on the fewest devices; nothing overlaps."""
        base = next(r for r in self.of(row.scaling) if not r.error)

        def rate(r: ScaleRow) -> float:
            time = r.times(self.speeds)["serial"]
            return r.batch / r.devices / time if time else 1.0

        return rate(row) / rate(base)

    def plot(self, path: str) -> None:
        """Draws examples per second against devices, and what would be ideal, as an SVG file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        for axes, scaling in zip(figure.subplots(1, 2), ("weak", "strong"), strict=True):
            rows = [row for row in self.of(scaling) if not row.error]
            if not rows:
                continue
            n = [row.devices for row in rows]
            for name, style in (("overlapped", "C0"), ("serial", "C1")):
                rates = [row.batch / row.times(self.speeds)[name] for row in rows]
                axes.loglog(n, rates, style, base=2, label=name)
                for row, rate in zip(rows, rates, strict=True):
                    fill = "none" if row.extrapolated else style
                    axes.plot(row.devices, rate, "o", color=style, markerfacecolor=fill)
            ideal = [rates[0] * k / n[0] for k in n]
            axes.loglog(n, ideal, "k:", base=2, label="ideal (serial)")
            axes.set(title=f"{scaling} scaling", xlabel="devices", ylabel="examples per second")
            axes.legend(title="hollow: extrapolated")
        figure.suptitle("estimated from the CPU partitioner's program")
        figure.savefig(path)


def seconds(time: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time >= 0.9995 * size:
            return f"{time / size:.3g} {unit}"
    return f"{1e9 * time:.3g} ns"


def extrapolated(
    rows: Sequence[ScaleRow], axis: str, devices: int, mesh: dict[str, int], batch: int
) -> ScaleRow:
    """What `rows`, of the same scaling, tell about more places on a mesh `axis`."""
    counts = [row.mesh[axis] for row in rows]

    def guess(values: Sequence[float]) -> float:
        return fitted(counts, values)[0](mesh[axis])

    zero = {"count": 0.0, "bytes": 0.0, "sent": 0.0}
    collectives: dict[str, dict[str, float]] = {}
    for name in sorted({name for row in rows for name in row.collectives}):
        parts = [row.collectives.get(name, zero) for row in rows]
        collectives[name] = {key: guess([part[key] for part in parts]) for key in zero}
    return ScaleRow(
        scaling=rows[0].scaling,
        devices=devices,
        mesh=mesh,
        batch=batch,
        extrapolated=True,
        held={role: guess([row.held[role] for row in rows]) for role in rows[0].held},
        activations=guess([row.activations for row in rows]),
        peak=guess([row.peak for row in rows]),
        flops=guess([row.flops for row in rows]),
        traffic=guess([row.traffic for row in rows]),
        collectives=collectives,
    )


def fitted(counts: Sequence[int], values: Sequence[float]) -> tuple[Any, float]:
    """`(function of the places on an axis, largest relative error at `counts`)`.

    A figure of one device is taken as a sum of parts that stay, shrink as 1/n, approach a limit as
    1 - 1/n (rings), or grow with n, none of them negative. Only what still grows at the largest
    of `counts` may grow on: a growing part that was fitted to noise would become all there is.
    """
    from scipy.optimize import nnls

    known = np.asarray(values, float)
    top = known.max()
    if top == 0:
        return lambda n: 0.0, 0.0
    grows = known[-1] > 1.001 * known[-2]

    def parts(n: Any) -> np.ndarray:
        n = np.asarray(n, float)
        found = [np.ones_like(n), counts[0] / n, 1 - 1 / n, n / counts[-1]]
        return np.stack(found[: 4 if grows else 3], axis=-1)

    # Relative to each value, so that small ones count as much as large ones.
    weight = 1 / np.maximum(known, 1e-3 * top)
    x, _ = nnls(parts(counts) * weight[:, None], known * weight)
    error = np.max(np.abs(parts(counts) @ x - known) * weight)
    return lambda n: float(parts(n) @ x), float(error)
