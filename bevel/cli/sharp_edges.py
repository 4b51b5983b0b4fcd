"""`bevel demo --edges`: measures the sharp edges of per-example clipping on a mesh.

Each row is a loss with a sharding constraint in a different place. It is clipped per example on 8
virtual devices, by bevel and by plain `jax.vmap(jax.grad(...))`. Errors are relative to a float64
oracle that handles one example at a time. The compiler reports FLOPs per device and collectives per
step.
"""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.sharding import inspect_step

B, T, D, H, CLIP = 64, 16, 64, 128, 0.05
DEVICES = 8
Loss = Callable[[Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class _Edge:
    """One row of the table: a loss, the specs of its parameters, and the mode of the mesh."""

    name: str
    make: Callable[[Callable[..., Any], Mesh | None], Loss]
    kind: AxisType = AxisType.Auto
    manual: bool = False
    specs: tuple[P, P] = (P(), P())


def _network(on_w: Any = None, on_x: Any = None, on_h: Any = None, on_out: Any = None) -> Loss:
    """Two layers on sequences (B, T, D). Each row passes its constraint as one of the hooks."""

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        first, second = on_w(*params) if on_w else params
        x = on_x(x) if on_x else x
        h = jnp.tanh(x @ first)
        h = on_h(h) if on_h else h
        out = h @ second
        out = on_out(out) if on_out else out
        return jnp.mean((out - y) ** 2)

    return loss


def _on_input(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_x=lambda x: c(x, "data"))


def _on_sequence(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_h=lambda h: c(h, "data", None, None))


def _on_flattened(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_h=lambda h: c(h.reshape(-1, H), "data", None).reshape(h.shape))


def _on_fsdp(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_w=lambda first, second: (c(first, "data"), c(second, "data")))


def _on_tensor_parallel(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_w=lambda first, second: (c(first, None, "model"), second))


def _in_scan(c: Any, mesh: Mesh | None) -> Loss:
    def step(h: Any, _: Any) -> Any:
        return c(jnp.tanh(h), "data"), None

    return _network(on_h=lambda h: jax.lax.scan(step, h, None, length=2)[0])


def _in_remat(c: Any, mesh: Mesh | None) -> Loss:
    return _network(on_h=jax.checkpoint(lambda h: jnp.sin(c(h, "data"))))


def _in_jit(c: Any, mesh: Mesh | None) -> Loss:
    inner = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("data"))) if mesh else jnp.sin
    return _network(on_h=inner)


def _in_custom_vjp(c: Any, mesh: Mesh | None) -> Loss:
    @jax.custom_vjp
    def double(h: Any) -> Any:
        return 2 * h

    double.defvjp(lambda h: (2 * h, None), lambda _, g: (c(2 * g, "data"),))
    return _network(on_h=double)


EDGES = (
    _Edge("constraint on the input", _on_input),
    _Edge("on (B, T, d) activations", _on_sequence),
    _Edge("on (B*T, d) activations", _on_flattened),
    _Edge("on the output", lambda c, _: _network(on_out=lambda out: c(out, "data"))),
    _Edge("on FSDP parameters", _on_fsdp, specs=(P("data"), P("data"))),
    _Edge("on tensor-parallel parameters", _on_tensor_parallel, specs=(P(None, "model"), P())),
    _Edge("inside scan", _in_scan),
    _Edge("inside remat", _in_remat),
    _Edge("nested jit(in_shardings=...)", _in_jit),
    _Edge("in a custom_vjp's backward", _in_custom_vjp),
    _Edge("Explicit mesh, reshard", _on_input, kind=AxisType.Explicit),
    _Edge("inside shard_map", lambda c, _: _network(), manual=True),
)


def _plain(loss: Loss) -> Callable[[Any, Any], Any]:
    """Per-example clipping as you would write it by hand."""

    def clipped(params: Any, batch: Any) -> Any:
        def one(x: Any, y: Any) -> Any:
            grad = jax.grad(loss)(params, (x[None], y[None]))
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in grad))
            return [g * jnp.minimum(1.0, CLIP / norm) for g in grad]

        return [jnp.sum(g, axis=0) for g in jax.vmap(one)(*batch)]

    return clipped


def _bevel(loss: Loss) -> Callable[[Any, Any], Any]:
    return lambda p, b: list(bevel.clipped_grad(loss, l2_clip_norm=CLIP)(tuple(p), b))


def _oracle(loss: Loss, params: Any, batch: Any) -> list[np.ndarray]:
    """The clipped sum in float64, one example at a time."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (list(params), batch))
        gradient = jax.jit(jax.grad(loss))
        total = [np.zeros(p.shape) for p in wide[0]]
        for i in range(B):
            example = jax.tree.map(lambda a, i=i: a[i : i + 1], wide[1])
            grad = [np.asarray(g) for g in gradient(wide[0], example)]
            scale = min(1.0, CLIP / np.sqrt(sum(np.sum(g**2) for g in grad)))
            total = [t + scale * g for t, g in zip(total, grad, strict=True)]
    return total


def measure(step: Callable[..., Any], arguments: Any, truth: list[np.ndarray]) -> tuple[str, ...]:
    """(error at equal length, FLOPs per device, collectives) of a step, or its exception's name."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # JAX prints some errors
            compiled = jax.jit(step).lower(*arguments).compile()
        result = [np.asarray(g, np.float64) for g in compiled(*arguments)]
    except Exception as error:
        return type(error).__name__, "", ""
    distance = np.linalg.norm(_unit(result) - _unit(truth))
    report = inspect_step(compiled, branch=-1)  # the branch without overflow
    short = {"all-reduce": "reduce", "all-gather": "gather", "all-to-all": "to-all"}
    counts = [f"{total.count} {short.get(k, k)}" for k, total in sorted(report.totals.items())]
    return f"{distance:.0e}", f"{report.flops / 1e6:.1f}M", ", ".join(counts)


def _unit(tree: list[np.ndarray]) -> np.ndarray:
    """The tree as one vector of length 1."""
    flat = np.concatenate([x.ravel() for x in tree])
    return flat / np.linalg.norm(flat)


def run_edge(edge: _Edge) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    params = [rng.normal(size=s).astype(np.float32) / 8 for s in ((D, H), (H, D))]
    scale = np.geomspace(0.1, 10, B)[:, None, None]
    batch = tuple((scale * rng.normal(size=(B, T, D))).astype(np.float32) for _ in range(2))
    truth = _oracle(edge.make(lambda x, *spec: x, None), params, batch)

    mesh = jax.make_mesh((DEVICES // 2, 2), ("data", "model"), axis_types=(edge.kind,) * 2)

    def constrain(x: jax.Array, *spec: str | None) -> jax.Array:
        if edge.kind == AxisType.Explicit:
            return jax.sharding.reshard(x, P(*spec))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    loss = edge.make(constrain, mesh)
    placed = [
        jax.device_put(p, NamedSharding(mesh, spec))
        for p, spec in zip(params, edge.specs, strict=True)
    ]
    arguments = placed, jax.device_put(batch, NamedSharding(mesh, P("data")))
    steps = [_bevel(loss), _plain(loss)]
    if edge.manual:
        steps = [_over_shards(step, mesh) for step in steps]
    with jax.set_mesh(mesh):
        cells = [measure(step, arguments, truth) for step in steps]
    return edge.name, *cells[0], *cells[1]


def _over_shards(step: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Each shard clips its own examples, and the sums are added afterwards."""

    def local(params: Any, batch: Any) -> Any:
        return [g[None] for g in step(params, batch)]

    shards = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    return lambda p, b: [jnp.sum(g, axis=0) for g in shards(p, b)]


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    console = Console(width=None if sys.stdout.isatty() else 120)
    title = f"Per-example clipping on 8 virtual devices (data=4, model=2), jax {jax.__version__}"
    caption = (
        "Errors are distances to a float64 oracle after both are scaled to length 1: bevel's sums\n"
        "are a little shorter on purpose, to stay below the clip norm. FLOPs are per device."
    )
    table = Table(title=title, caption=caption)
    table.add_column("where the sharding constraint is", no_wrap=True)
    for name in ("bevel", "plain vmap(grad)"):
        table.add_column(f"{name}\nerror", justify="right")
        table.add_column("\nFLOPs", justify="right")
        table.add_column("\ncollectives")
    with console.status("compiling"):
        for edge in EDGES:
            table.add_row(*run_edge(edge))
    console.print(table)
