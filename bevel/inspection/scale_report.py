"""The report of `scale`: tables, a plot, and extrapolation to more devices."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bevel.checks import finite_number, positive_number, text
from bevel.lazy import optional_module
from bevel.sharding.tables import short, tables_within, wrapped

LABEL = (
    "Compiled for virtual CPU devices and never run: what is sent and held comes from the CPU "
    "partitioner. Another backend fuses more, and may hold and send less. Times are estimates "
    "from the given speeds."
)


@dataclasses.dataclass(frozen=True)
class Speeds:
    """The speeds of a device, in FLOPs and bytes per second. The defaults are for an H200.

    Attributes:
      flops: speed of matrix products. The default was measured with bfloat16.
      memory: bandwidth of the device memory. The default was measured.
      link: bandwidth to a neighbour in one direction: a number, or one for each mesh axis. The
        default is the nominal bandwidth of NVLink; set it for axes that cross hosts.
      latency: seconds that every collective takes at least.
    """

    flops: float = 7.7e14
    memory: float = 4.3e12
    link: float | Mapping[str, float] = 4.5e11
    latency: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("flops", "memory"):
            positive_number(name, getattr(self, name), "in FLOPs or bytes per second")
        finite_number("latency", self.latency, "in seconds, such as 1e-5", least=0.0)
        links = self.link if isinstance(self.link, Mapping) else {"all": self.link}
        for axis, link in links.items():
            text("an axis in link", axis)
            positive_number("link", link, "in bytes per second")

    def of_axes(self, axes: Sequence[str]) -> float:
        """The bandwidth of the slowest link among `axes`."""
        if isinstance(self.link, Mapping):
            return min((self.link[a] for a in axes), default=math.inf)
        return self.link


@dataclasses.dataclass(frozen=True)
class ScaleRow:
    """The figures for one mesh and batch size, on one device and for one step."""

    scaling: str  # weak: constant batch per device; strong: constant total batch
    devices: int
    mesh: dict[str, int]
    batch: int
    extrapolated: bool
    held: dict[str, float]  # bytes, by role
    activations: float  # bytes, with all other temporaries
    peak: float
    flops: float
    traffic: float
    collectives: dict[str, dict[str, float]]  # `kind over axes` to count, bytes, sent
    error: str | None = None

    def times(self, speeds: Speeds) -> dict[str, float]:
        """Seconds for products, memory and links, and for a step with and without overlap."""
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
        """Bytes sent by each kind of collective."""
        sent: dict[str, float] = {}
        for name, c in self.collectives.items():
            kind = name.split(" over ")[0]
            sent[kind] = sent.get(kind, 0.0) + c["sent"]
        return sent


def failed_row(scaling: str, n: int, mesh: dict[str, int], batch: int, error: str) -> ScaleRow:
    return ScaleRow(scaling, n, mesh, batch, False, {}, 0.0, 0.0, 0.0, 0.0, {}, error)


@dataclasses.dataclass(frozen=True)
class ScaleReport:
    """Weak and strong scaling of a step. Print it, plot it, or convert it with `to_dict()`."""

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
        return self.text(200)

    def text(self, width: int) -> str:
        """The report in lines of at most `width` columns. Tables that are wider are split."""
        parts = ["Weak scaling: the batch size of each device stays the same", ""]
        parts += self._tables("weak", width)
        parts += ["Strong scaling: the total batch size stays the same", ""]
        parts += self._tables("strong", width)
        return wrapped(*parts, LABEL, *self.notes, width=width)

    def _tables(self, scaling: str, width: int) -> list[Any]:
        rows = self.of(scaling)
        kinds = sorted({kind for row in rows for kind in row.sent()})
        head = ["devices", "mesh", "batch", "params", "optimizer", "noise", "activations", "peak"]
        head += ["FLOPs", *(f"{kind} sent" for kind in kinds), "products", "memory", "links"]
        head += ["step", "examples/s", "efficiency"]
        right = [i for i, name in enumerate(head) if name != "mesh"]
        tables = tables_within(width, head, [self.cells(row, kinds) for row in rows], right)
        return [part for table in tables for part in (table, "")]

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
            *(format_seconds(t[name]) for name in ("products", "memory", "links")),
            f"{format_seconds(t['overlapped'])} to {format_seconds(t['serial'])}",
            short(row.batch / t["serial"]) if t["serial"] else "-",
            f"{100 * self.efficiency(row):.0f}%",
        ]

    def efficiency(self, row: ScaleRow) -> float:
        """Examples per second and device, relative to the fewest devices, without overlap."""
        base = next(r for r in self.of(row.scaling) if not r.error)

        def rate(r: ScaleRow) -> float:
            time = r.times(self.speeds)["serial"]
            return r.batch / r.devices / time if time else 1.0

        return rate(row) / rate(base)

    def plot(self, path: str) -> None:
        """Plots examples per second against devices, with ideal scaling, to an SVG file."""
        figure = optional_module("matplotlib.figure", "a plot").Figure(
            figsize=(10, 4), layout="constrained"
        )
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
        figure.suptitle("estimated from the program of the CPU partitioner")
        figure.savefig(path)


def format_seconds(time: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time >= 0.9995 * size:
            return f"{time / size:.3g} {unit}"
    return f"{1e9 * time:.3g} ns"


def extrapolated_row(
    rows: Sequence[ScaleRow], axis: str, devices: int, mesh: dict[str, int], batch: int
) -> ScaleRow:
    """Extrapolates `rows`, which have the same scaling, to a larger size of a mesh `axis`."""
    counts = [row.mesh[axis] for row in rows]

    def guess(values: Sequence[float]) -> float:
        return fit(counts, values)[0](mesh[axis])

    zero = {"count": 0.0, "bytes": 0.0, "sent": 0.0}
    collectives: dict[str, dict[str, float]] = {}
    for name in sorted({name for row in rows for name in row.collectives}):
        parts = [row.collectives.get(name, zero) for row in rows]
        collectives[name] = {key: guess([part[key] for part in parts]) for key in zero}
    held = {role: guess([row.held[role] for row in rows]) for role in rows[0].held}
    activations, peak, flops, traffic = (
        guess([getattr(row, name) for row in rows])
        for name in ("activations", "peak", "flops", "traffic")
    )
    scaling = rows[0].scaling
    return ScaleRow(
        scaling, devices, mesh, batch, True, held, activations, peak, flops, traffic, collectives
    )


def fit(counts: Sequence[int], values: Sequence[float]) -> tuple[Any, float]:
    """Fits a figure to sizes of an axis: `(function of the size, largest relative error)`.

    A figure of one device is modelled as a sum of four terms with non-negative coefficients: a
    constant, 1/n, 1 - 1/n (rings) and n. The term n is used only if the figure still grows at the
    largest of `counts`, because a growing term that was fitted to noise would dominate.
    """
    from scipy.optimize import nnls

    known = np.asarray(values, float)
    top = known.max()
    if top == 0:
        return lambda n: 0.0, 0.0
    grows = known[-1] > 1.001 * known[-2]

    def terms(n: Any) -> np.ndarray:
        n = np.asarray(n, float)
        all_terms = [np.ones_like(n), counts[0] / n, 1 - 1 / n, n / counts[-1]]
        return np.stack(all_terms[: 4 if grows else 3], axis=-1)

    # Minimise relative errors, so that small values count as much as large ones.
    weight = 1 / np.maximum(known, 1e-3 * top)
    x, _ = nnls(terms(counts) * weight[:, None], known * weight)
    error = np.max(np.abs(terms(counts) @ x - known) * weight)
    return lambda n: float(terms(n) @ x), float(error)
