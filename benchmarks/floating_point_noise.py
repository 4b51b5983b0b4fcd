"""Shows what floating-point noise reveals: which outputs it can reach depends on the sum.

The noise is `stddev * z` in float32. Without the record that the attacker looks for, each
coordinate of the noised sum is such a product, rounded to float32. With the record, the sum is
rounded elsewhere, and some coordinate has a value that no z could have given. Mironov (2012)
describes the attack for Laplace noise. The script prints in how many runs the attack detects the
record.

python benchmarks/floating_point_noise.py [--runs 60] [--coordinates 1000]
"""

import argparse
import datetime
import platform

import jax
import jax.numpy as jnp
import numpy as np

import bevel
from bevel import DPSGDConfig

EXAMPLES, EPSILON, DELTA = 100, 0.5, 1e-5


def plan():
    """One step on all examples. Nothing is sampled, so only the noise protects."""
    config = DPSGDConfig(EXAMPLES, EXAMPLES, 1, neighboring_relation="REPLACE_SPECIAL")
    return config.calibrate(epsilon=EPSILON, delta=DELTA).make()


def loss(params, x):
    return jnp.vdot(params, x[0])


def released(step_plan, coordinates, has_canary):
    """The noised sum of gradients, which are zero except for that of the canary."""
    data = np.zeros((EXAMPLES, coordinates), np.float32)
    if has_canary:
        data[0] = np.random.default_rng(0).normal(size=coordinates)
    params = jnp.zeros(coordinates)
    sums = step_plan.clipped_grad(loss)(params, jnp.asarray(data))
    transform = step_plan.noise_addition_transform
    return np.asarray(transform.update(sums, transform.init(params))[0])


def is_reachable(noised, stddev):
    """Which numbers equal stddev times a float32 number, rounded to float32."""
    stddev = np.float32(stddev)
    nearest = (noised.astype(np.float64) / np.float64(stddev)).astype(np.float32)
    below, above = (np.nextafter(nearest, np.float32(end)) for end in (-np.inf, np.inf))
    return np.any([stddev * z == noised for z in (nearest, below, above)], axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--coordinates", type=int, default=1000)
    options = parser.parse_args()
    for has_canary in (True, False):
        detections = 0
        for _ in range(options.runs):
            step_plan = plan()  # draws a new key
            noised = released(step_plan, options.coordinates, has_canary)
            detections += not is_reachable(noised, step_plan.noise_stddev).all()
        where = "with the record" if has_canary else "without the record"
        print(f"{where}: detected in {detections} of {options.runs} runs")
    print(
        f"epsilon {EPSILON:g} at delta {DELTA:g}, {options.coordinates} coordinates; "
        f"{platform.machine()} {jax.default_backend()}, {datetime.date.today()}, jax "
        f"{jax.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
