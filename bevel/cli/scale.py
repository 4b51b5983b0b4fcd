"""`bevel scale`: a step on thousands of devices, on paper."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bevel.cli.config import Config, read_config
from bevel.errors import FixArgumentsError

EXAMPLES = """examples:
  bevel scale examples/digits.toml --devices 8,64,512,4096
  bevel scale examples/digits.toml --axes data=-1,model=4 --plot scale.svg
  bevel scale examples/scale.py:build_step --batch-size 16 --axes data=-1,model=2 \\
      --spec '{"layers": 2}'
"""
PyTree = Any


def main(arguments: Sequence[str]) -> int:
    from bevel.sharding import Speeds, scale

    parser = argparse.ArgumentParser(
        prog="bevel scale",
        description="What each device holds, computes and sends: compiled for virtual devices, "
        "never run, and extrapolated beyond 512.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", metavar="CONFIG", help="a config, or file.py:build_step")
    parser.add_argument("--devices", type=_numbers, default=(8, 64, 512, 4096))
    parser.add_argument("--axes", help="the mesh; -1 takes the rest. By default the config's")
    parser.add_argument("--batch-size", type=int, help="on the fewest devices")
    parser.add_argument("--spec", type=json.loads, help="JSON: what else build_step takes")
    for name in ("flops", "memory", "link", "latency"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Speeds, name))
    parser.add_argument("--plot", type=Path, help="an SVG file to draw")
    parser.add_argument("--json", type=Path, help="a file for the plain data")
    given = parser.parse_args(arguments)
    if ":" in given.step:
        if given.batch_size is None:
            parser.error("--batch-size is needed for a build_step")
        build, spec = given.step, given.spec or {}
        axes, batch_size = given.axes or "data=-1", given.batch_size
    else:
        if given.spec:
            parser.error("--spec is for file.py:build_step: change the config instead")
        config = read_config(given.step)
        build, spec = f"{__name__}:build_step", {"config": str(Path(given.step).resolve())}
        axes = given.axes or _open_axes(config)
        batch_size = given.batch_size or whole_batch(config, axes, min(given.devices))
    report = scale(
        build,
        axes=axes,
        batch_size=batch_size,
        devices=given.devices,
        spec=spec,
        speeds=Speeds(given.flops, given.memory, given.link, given.latency),
    )
    print(report)
    if given.plot:
        report.plot(given.plot)
    if given.json:
        given.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _open_axes(config: Config) -> str:
    """The config's mesh, with the axis that carries examples left open."""
    from bevel.sharding.mesh import pairs_of
    from bevel.training.batches import BATCH_AXES

    axes = dict(pairs_of(config.mesh.axes or "data=-1"))
    carrier = next((name for name in axes if name in BATCH_AXES), None)
    if carrier is None:
        raise FixArgumentsError(f"no axis of {config.mesh.axes!r} carries examples: give --axes.")
    return ",".join(f"{name}={-1 if name == carrier else size}" for name, size in axes.items())


def whole_batch(config: Config, axes: str, devices: int) -> int:
    """The config's batch, rounded up to what the smallest mesh can split evenly."""
    from bevel.sharding import axis_sizes
    from bevel.training.batches import BATCH_AXES

    sizes = axis_sizes(axes, devices)
    parts = math.prod(size for name, size in sizes.items() if name in BATCH_AXES)
    return math.ceil(config.plan.batch_size / parts) * parts


def build_step(mesh: Any, batch_size: int, *, config: str) -> Any:
    """The step of a config, with the types of its arguments on a mesh: nothing is allocated."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from bevel.cli.job import Job, example_types
    from bevel.sharding import PlacedStep, place

    job = Job(read_config(config), mesh)
    trainer = job.trainer
    params = place(jax.eval_shape(job.init), mesh, trainer.rules)

    def on(spec: PartitionSpec) -> Any:
        where = NamedSharding(mesh, spec)
        return lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    optimizer = _like(jax.eval_shape(trainer._optimizer.init, params), params, mesh)
    noise = _like(jax.eval_shape(trainer.plan.noise_addition_transform.init, params), params, mesh)
    rows = on(PartitionSpec(trainer.layout.axes))
    batch = jax.tree.map(rows, example_types(job.data, batch_size))
    padding = rows(jax.ShapeDtypeStruct((batch_size,), bool))
    average = None if trainer.ema_decay is None else params

    def step(params: PyTree, optimizer: PyTree, noise: PyTree, other: PyTree, batch: PyTree) -> Any:
        from bevel.training import TrainingState

        number, average, loss_words, noise_words = other
        state = TrainingState(
            step=number, params=params, opt_state=optimizer, noise_state=noise, average=average
        )
        words = {"loss": loss_words, "noise": noise_words}
        return trainer._measured_step(state, (batch[0], None), batch[1], words)

    whole = on(PartitionSpec())
    noise_words = jax.random.key_data(trainer.plan.secrets.noise_key)
    other = (
        whole(jax.ShapeDtypeStruct((), "int32")),
        average,
        whole(jax.ShapeDtypeStruct((2,), "uint32")),
        whole(noise_words),
    )
    roles = {"params": params, "optimizer": optimizer, "noise": noise, "other": other}
    return PlacedStep(step, roles | {"batch": (batch, padding)})


def _like(state: PyTree, params: PyTree, mesh: Any) -> PyTree:
    """The types of a state on the mesh, its copies of parameters placed as these are."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    known = {path: x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(path: Any, x: Any) -> Any:
        tails = (known.get(path[i:]) for i in range(len(path)))
        twin = next((p for p in tails if p is not None and p.shape == x.shape), None)
        where = whole if twin is None else twin.sharding
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree_util.tree_map_with_path(placed, state)
