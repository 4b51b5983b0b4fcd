"""The rows of `growth.py` that compile programs: leaves, parameters and processes."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import processes
import sampling

Rows = Iterator[tuple[str, str, Sequence[float], Sequence[float], float]]
WIDTH = 1000  # of the matrix whose size grows
CHILD_SECONDS = 300


def by_leaves(quick: bool) -> Rows:
    """Noise for leaves of different shapes, and the clipped gradient of a network of layers."""
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    sizes = (4, 8, 16) if quick else (8, 16, 32, 64, 128)
    noise = [noise_program(leaves) for leaves in sizes]
    yield "noise: traced and compiled", "s", sizes, [seconds for seconds, _ in noise], 0
    yield "noise: temporaries / gradient", "x", sizes, [ratio for _, ratio in noise], 0
    layers = sizes[:3] if quick else sizes[:4]
    clipped_program(2)  # imports
    clipped = [clipped_program(count) for count in layers]
    yield "clipped gradient: traced", "s", layers, [traced for traced, _ in clipped], 1
    yield "clipped gradient: compiled", "s", layers, [compiled for _, compiled in clipped], 1


def noise_program(leaves: int, total: int = 2**21) -> tuple[float, float]:
    """Processor seconds to compile the noise of leaves of different shapes, and its temporaries.

    The leaves have `total` elements together.
    """
    import jax
    import jax.numpy as jnp

    from bevel.noise_addition import gaussian_privatizer

    jax.clear_caches()
    width = total // leaves // 64
    shapes = {f"leaf{k:03d}": (64 - k % 8, width + k) for k in range(leaves)}
    gradient = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    privatizer = gaussian_privatizer(stddev=1.0, prng_key=0)
    state = jax.eval_shape(privatizer.init, gradient)
    begun = time.process_time()
    program = jax.jit(privatizer.update, donate_argnums=(0, 1)).lower(gradient, state).compile()
    seconds = time.process_time() - begun
    size = sum(4 * rows * columns for rows, columns in shapes.values())
    return seconds, program.memory_analysis().temp_size_in_bytes / size


def clipped_program(layers: int) -> tuple[float, float]:
    """Processor seconds to trace and to compile the clipped gradient of dense layers."""
    import jax
    import jax.numpy as jnp

    import bevel

    def loss(params: Any, x: Any) -> Any:
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"][None])
        return jnp.mean(x**2)

    jax.clear_caches()
    shaped = jax.ShapeDtypeStruct
    params = [
        {"w": shaped((32, 32), jnp.float32), "b": shaped((32,), jnp.float32)}
        for _ in range(layers // 2)
    ]
    x = shaped((16, 32), jnp.float32)
    times = [time.process_time()]
    traced = jax.jit(bevel.clipped_grad(loss, l2_clip_norm=1.0)).trace(params, x)
    times.append(time.process_time())
    traced.lower().compile()
    times.append(time.process_time())
    return times[1] - times[0], times[2] - times[1]


def by_parameters(quick: bool) -> Rows:
    """A run with one matrix and Adam, in a process of its own for each size."""
    sizes = (10**4, 10**5) if quick else (10**5, 10**6, 10**7, 3 * 10**7)
    found = []
    for size in sizes:
        command = [sys.executable, __file__, "--parameters", str(size)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=CHILD_SECONDS
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    for name, unit, expected in (
        ("init", "s", 1),
        ("a release", "s", 1),
        ("bytes of a checkpoint", "B", 1),
        ("live arrays after init", "B", 1),
        ("peak of the process above its start", "B", 1),
        ("live arrays after init / parameters", "x", 0),
        ("peak of the process above its start / parameters", "x", 0),
    ):
        yield name, unit, sizes, [row[name] for row in found], expected


def run_of(parameters: int) -> dict[str, float]:
    """Four steps of a run with two releases. Times of the second, after everything is compiled."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from bevel.execution_plan import DPSGDConfig
    from bevel.training import RunOptions, Trainer

    jax.config.update("jax_enable_compilation_cache", False)
    rows = max(1, parameters // WIDTH)
    config = DPSGDConfig.default(
        num_examples=100, expected_batch_size=4, iterations=6, noise_multiplier=1.0
    )
    trainer = Trainer(
        config=config,
        loss_fn=lambda params, x, prng: (jnp.mean(jnp.tanh(x @ params["w"]) ** 2), {}),
        optimizer=optax.adam(1e-3),
    )
    params = {"w": np.zeros((rows, WIDTH), np.float32)}
    jax.block_until_ready(trainer.init({"w": np.zeros((1, WIDTH), np.float32)}))  # compiles
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begun = time.perf_counter()
    state = trainer.init(params)
    jax.block_until_ready(jax.tree.leaves(state))
    init = time.perf_counter() - begun
    live = sum(x.nbytes for x in jax.live_arrays())
    del state
    with tempfile.TemporaryDirectory() as root:
        trainer.fit(
            np.ones((100, rows), np.float32),
            params,
            folder=Path(root) / "run",
            callback=lambda state, metrics: False,
            options=RunOptions(
                checkpoint_every=2, progress=False, tensorboard=False, delta=1e-6, compilations=1
            ),
        )
        record = json.loads((Path(root) / "run" / "private" / "run.json").read_text())
        checkpoint = Path(root) / "run" / "released" / "checkpoints" / "6"
        size = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
    return {
        "init": init,
        "a release": record["seconds_by_part"]["checkpoints"] / 3,
        "bytes of a checkpoint": size,
        "live arrays after init": live,
        "peak of the process above its start": peak,
        "live arrays after init / parameters": live / (4 * rows * WIDTH),
        "peak of the process above its start / parameters": peak / (4 * rows * WIDTH),
    }


def by_processes(quick: bool) -> Rows:
    """The rows of `processes.py`, and the share that one process draws of a batch of 1e6."""
    options = argparse.Namespace(**processes.SIZES)
    if quick:
        options = argparse.Namespace(width=64, layers=2, rows=512, steps=5, rounds=1)
    rows = processes.measure(options)
    sizes = [processes.LAYOUTS[row["layout"]][0] for row in rows]
    yield "a step of bevel", "s", sizes, [row["steps"] for row in rows], 0
    yield "a step of plain JAX", "s", sizes, [row["plain"] for row in rows], 0
    yield "a release", "s", sizes, [row["release"] for row in rows], 0
    yield "start, to the first step", "s", sizes, [row["start_up"] for row in rows], 0
    size, batch = 10**12, 10**4 if quick else 10**6
    sampler = sampling.FixedBatchSampling(batch, 10)
    shares = (1, 8, 64, 512)
    costs = [
        sampling.cost(
            lambda p=count: sampler.batch(3, size, sampling.SEED, process_index=0, process_count=p),
            3,
        )
        for count in shares
    ]
    title = f"draw of a share of {batch:.0e} examples"
    yield f"{title}: time", "s", shares, [1e-3 * ms for ms, _ in costs], -1
    yield f"{title}: memory", "B", shares, [1e6 * mb for _, mb in costs], -1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, required=True)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    print(json.dumps(run_of(parser.parse_args().parameters)))
