"""How long a run takes from the call of `fit` to the end of its first step.

    python benchmarks/start.py                    # all models: about a minute
    python benchmarks/start.py --models conv --parts

Small models on a CPU, each in a process of its own, in a new run folder, without a compilation
cache. `imports` are the seconds of importing JAX and bevel, `plan` those of calibration and of
creating parameters, and `start` those from the call of `fit` to the end of the first step.
`--parts` also prints what they are spent on; parts inside others are indented and overlap, because
the step is compiled while the run folder is prepared.
"""

import argparse
import contextlib
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MODELS = ("demo", "conv", "transformer")
EXAMPLES = 4096
Fit = Callable[[Path], Any]


class FirstStepTakenError(Exception):
    """Ends a run before its second step."""


def demo() -> Fit:
    from bevel.cli.demo import DIGITS, build
    from bevel.cli.job import Job, use_cpu_devices
    from bevel.training.progress import Progress

    use_cpu_devices(DIGITS.mesh.cpu_devices or 1)
    job = Job(DIGITS)
    build(job, Progress())
    return lambda folder: job.fit(folder=folder, progress=Progress())


def fit_of(params: Any, data: Any, loss: Callable[..., Any]) -> Fit:
    import optax

    from bevel import DPSGDConfig
    from bevel.training import RunOptions, Trainer

    config = DPSGDConfig.default(
        num_examples=EXAMPLES, expected_batch_size=128, iterations=50
    ).calibrate(epsilon=3, delta=1e-5)
    trainer = Trainer(config=config, loss_fn=loss, optimizer=optax.adam(1e-3))
    options = RunOptions(progress=False)
    return lambda folder: trainer.fit(data, params, folder=folder, options=options)


def random(seed: int, *shape: int) -> Any:
    import jax.numpy as jnp
    import numpy as np

    scale = np.prod(shape[:-1]) ** -0.5
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


def conv() -> Fit:
    """Two convolutions and two dense layers: 1.2e5 parameters in 8 leaves."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(EXAMPLES, 28, 28, 1)).astype(np.float32),
        "y": rng.integers(0, 10, EXAMPLES).astype(np.int32),
    }
    shapes = (5, 5, 1, 16), (5, 5, 16, 32), (7 * 7 * 32, 64), (64, 10)
    params = {f"w{n}": random(n, *shape) for n, shape in enumerate(shapes)}
    params |= {f"b{n}": jnp.zeros(shape[-1]) for n, shape in enumerate(shapes)}

    def loss(params: Any, data: Any, prng: Any) -> Any:
        x = data["x"]
        for n in range(2):
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, params[f"w{n}"], (2, 2), "SAME", dimension_numbers=layout
            )
            x = jax.nn.relu(x + params[f"b{n}"])
        x = jax.nn.relu(x.reshape(len(x), -1) @ params["w2"] + params["b2"])
        logits = x @ params["w3"] + params["b3"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, data["y"]).mean(), {}

    return fit_of(params, data, loss)


def transformer() -> Fit:
    """Two layers of width 64, sequences of 32 tokens: 1.3e5 parameters in 19 leaves."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    vocabulary, width, length, heads, layers = 256, 64, 32, 4, 2
    rng = np.random.default_rng(0)
    data = {"tokens": rng.integers(0, vocabulary, (EXAMPLES, length)).astype(np.int32)}
    shapes = {"embedding": (vocabulary, width), "position": (length, width)}
    shapes["output"] = (width, vocabulary)
    for n in range(layers):
        shapes |= {f"{name}{n}": (width, width) for name in ("query", "key", "value", "merge")}
        shapes |= {f"up{n}": (width, 4 * width), f"down{n}": (4 * width, width)}
    params = {name: random(seed, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    params |= {f"scale{n}": jnp.ones(width) for n in range(2 * layers)}

    def loss(params: Any, data: Any, prng: Any) -> Any:
        def norm(x: Any, scale: Any) -> Any:
            return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

        def split(x: Any) -> Any:
            return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

        tokens = data["tokens"]
        x = params["embedding"][tokens] + params["position"]
        past = jnp.tril(jnp.ones((length, length), bool))
        for n in range(layers):
            y = norm(x, params[f"scale{2 * n}"])
            query, key, value = (split(y @ params[f"{m}{n}"]) for m in ("query", "key", "value"))
            scores = jnp.where(past, query @ key.swapaxes(-1, -2) / 4, -1e9)
            y = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
            x = x + y @ params[f"merge{n}"]
            y = norm(x, params[f"scale{2 * n + 1}"])
            x = x + jax.nn.gelu(y @ params[f"up{n}"]) @ params[f"down{n}"]
        logits, labels = (x @ params["output"])[:, :-1], tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), {}

    return fit_of(params, data, loss)


def watch(owner: Any, name: str, parts: list[tuple[float, float, str]]) -> None:
    """Records when each call of a function begins, and how long it takes."""
    function = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            parts.append((begun, time.perf_counter() - begun, name))

    setattr(owner, name, timed)


def measure(model: str, show_parts: bool) -> None:
    begun = time.perf_counter()
    import jax

    from bevel.training import loop
    from bevel.training.compiled_steps import CompiledSteps
    from bevel.training.folder_run import FolderRun
    from bevel.training.private_step import PrivateStep
    from bevel.training.trainer import Trainer

    parts: list[tuple[float, float, str]] = []
    watched: list[tuple[Any, str]] = [
        *((CompiledSteps, name) for name in ("_lower", "fingerprint", "of_size")),
        *((FolderRun, name) for name in ("identify", "resume", "next_goal")),
        *((loop, name) for name in ("surroundings", "identity_of", "public_record")),
        (PrivateStep, "digests"),
        (Trainer, "init"),
    ]
    for owner, name in watched:
        watch(owner, name, parts)
    ended: list[float] = []
    take_step = CompiledSteps.__call__

    def first_step(programs: Any, *arguments: Any) -> Any:
        if ended:
            raise FirstStepTakenError
        result = jax.block_until_ready(take_step(programs, *arguments))
        ended.append(time.perf_counter())
        return result

    CompiledSteps.__call__ = first_step  # type: ignore[method-assign]
    imported = time.perf_counter()
    fit = {"demo": demo, "conv": conv, "transformer": transformer}[model]()
    called = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(FirstStepTakenError):
        fit(Path(folder) / "run")
    columns = imported - begun, called - imported, ended[0] - called
    print(f"| {model} | {' | '.join(f'{seconds:.1f}' for seconds in columns)} |", flush=True)
    for start, seconds, name in sorted(parts) if show_parts else ():
        if start < ended[0] and seconds > 0.05:
            print(f"    {start - called:6.2f} {name} {seconds:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--parts", action="store_true", help="print what the time is spent on")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_this_process:
        measure(options.models[0], options.parts)
        return
    print("| model | imports | plan | start |\n| --- | --- | --- | --- |", flush=True)
    for model in options.models:
        command = [sys.executable, *sys.argv, "--models", model, "--in-this-process"]
        subprocess.run(command, check=True)
    import jax

    import bevel

    cpu = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    versions = f"jax {jax.__version__}, bevel {bevel.__version__}"
    print(f"\n{cpu}, {datetime.date.today()}, {versions}")


if __name__ == "__main__":
    main()
