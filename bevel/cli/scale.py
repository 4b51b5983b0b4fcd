"""`bevel scale`: estimates a step on thousands of devices without running it."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bevel.cli.command_parser import CommandParser
from bevel.cli.config import Config, read_config
from bevel.cli.printing import width
from bevel.errors import FixArgumentsError
from bevel.training.terminal_progress import progress_of

EXAMPLES = """examples:
  bevel scale examples/digits.toml --devices 8,64,512,4096
  bevel scale examples/digits.toml --axes data=-1,model=4 --plot scale.svg
  bevel scale examples/digits.toml --json > scale.json
  bevel scale examples/scale.py:build_step --batch-size 16 \\
      --axes data=-1,model=2 --spec '{"layers": 2}'

FILE.py, and the model file of a config, are Python code, which this command
runs: use files that you trust.
"""
PyTree = Any


def main(arguments: Sequence[str]) -> int:
    from bevel.sharding import Speeds, scale

    parser = CommandParser(
        "scale",
        "Show what each device holds, computes and sends in one step. The step is\n"
        "compiled for up to 512 virtual devices, never run, and extrapolated beyond that.",
        EXAMPLES,
    )
    parser.add_argument("step", metavar="CONFIG", help="a config, or file.py:build_step")
    parser.add_argument("--devices", type=_numbers, default=(8, 64, 512, 4096))
    parser.add_argument("--axes", help="mesh axes, one of size -1; by default the config's")
    parser.add_argument("--batch-size", type=int, help="batch size on the fewest devices")
    parser.add_argument("--spec", type=json.loads, help="further arguments of build_step, as JSON")
    for name in ("flops", "memory", "link", "latency"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Speeds, name))
    parser.add_argument("--plot", type=Path, help="write a plot to this SVG file")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print the data as JSON instead of tables, or write it to this file as well",
    )
    options = parser.parsed(arguments)
    shown = progress_of(None, sys.stderr)
    if ":" in options.step:
        if options.batch_size is None:
            parser.error("pass --batch-size with file.py:build_step")
        build, spec = options.step, options.spec or {}
        axes, batch_size = options.axes or "data=-1", options.batch_size
    else:
        if options.spec:
            parser.error("--spec is only for file.py:build_step: change the config instead")
        config = read_config(options.step)
        build, spec = f"{__name__}:build_step", {"config": str(Path(options.step).resolve())}
        axes = options.axes or _open_axes(config)
        batch_size = options.batch_size or divisible_batch_size(config, axes, min(options.devices))
    report = scale(
        build,
        axes=axes,
        batch_size=batch_size,
        devices=options.devices,
        spec=spec,
        speeds=Speeds(options.flops, options.memory, options.link, options.latency),
        on_compile=shown.working,
    )
    data = json.dumps(report.to_dict(), indent=1)
    print(data if options.json == "-" else report.text(width()))
    if options.plot:
        report.plot(options.plot)
    if options.json not in (None, "-"):
        Path(options.json).write_text(f"{data}\n")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _open_axes(config: Config) -> str:
    """The config's mesh axes, with the size of the batch axis replaced by -1."""
    from bevel.sharding.mesh import pairs_of
    from bevel.training.batches import BATCH_AXES

    axes = dict(pairs_of(config.mesh.axes or "data=-1"))
    batch_axis = next((name for name in axes if name in BATCH_AXES), None)
    if batch_axis is None:
        raise FixArgumentsError(f"[mesh] axes {config.mesh.axes!r} has no batch axis: pass --axes.")
    return ",".join(f"{name}={-1 if name == batch_axis else size}" for name, size in axes.items())


def divisible_batch_size(config: Config, axes: str, devices: int) -> int:
    """The config's batch size, rounded up to a multiple of the smallest mesh's batch shards."""
    from bevel.sharding import axis_sizes
    from bevel.training.batches import BATCH_AXES

    sizes = axis_sizes(axes, devices)
    parts = math.prod(size for name, size in sizes.items() if name in BATCH_AXES)
    return math.ceil(config.plan.batch_size / parts) * parts


def build_step(mesh: Any, batch_size: int, *, config: str) -> Any:
    """The step of a config with the sharded types of its arguments. Nothing is allocated."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from bevel.cli.job import Job, example_types
    from bevel.sharding import PlacedStep, place

    job = Job(read_config(config), mesh)
    trainer = job.trainer
    params = place(jax.eval_shape(job.init), mesh, trainer.rules)

    def on(spec: PartitionSpec) -> Any:
        sharding = NamedSharding(mesh, spec)
        return lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    optimizer = _placed_like(jax.eval_shape(trainer.step.optimizer.init, params), params, mesh)
    noise = _placed_like(
        jax.eval_shape(trainer.plan.noise_addition_transform.init, params), params, mesh
    )
    rows = on(PartitionSpec(trainer.layout.axes))
    batch = jax.tree.map(rows, example_types(job.data.spec, batch_size))
    padding = rows(jax.ShapeDtypeStruct((batch_size,), bool))
    average = None if trainer.ema_decay is None else params

    def step(params: PyTree, optimizer: PyTree, noise: PyTree, other: PyTree, batch: PyTree) -> Any:
        from bevel.training import TrainingState

        number, average, loss_key_data, noise_words = other
        state = TrainingState(
            step=number,
            params=params,
            opt_state=optimizer,
            noise_state=noise,
            average=average,
            model_state=job.model.model_state,
        )
        words = {"loss": loss_key_data, "noise": noise_words}
        return trainer.step.measured(state, (batch[0], None), batch[1], words)

    replicated = on(PartitionSpec())
    noise_words = jax.random.key_data(trainer.plan.secrets.noise_key)
    other = (
        replicated(jax.ShapeDtypeStruct((), "int32")),
        average,
        replicated(jax.ShapeDtypeStruct((2,), "uint32")),
        replicated(noise_words),
    )
    roles = {"params": params, "optimizer": optimizer, "noise": noise, "other": other}
    return PlacedStep(step, roles | {"batch": (batch, padding)})


def _placed_like(state: PyTree, params: PyTree, mesh: Any) -> PyTree:
    """The types of a state on the mesh, with copies of parameters sharded as the parameters."""
    import jax

    from bevel.training.initial_state import like_params

    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        state,
        like_params(state, params, mesh),
    )
