"""What floating-point noise gives away: the outputs that it can reach depend on the sum.

Noise is `stddev * z` in float32. Without the record that is looked for, each coordinate of the
noised sum is one of the products that float32 can hold. With the record it is rounded from another
place, and some value is found that no z could have given. Mironov (2012) describes the attack for
Laplace noise. Prints in how many runs the record is said to be there.

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
    """One step on all examples: nothing is sampled, so nothing but the noise protects."""
    config = DPSGDConfig(EXAMPLES, EXAMPLES, 1, neighboring_relation="REPLACE_SPECIAL")
    return config.calibrate(epsilon=EPSILON, delta=DELTA).make()


def loss(params, x):
    return jnp.vdot(params, x[0])


def released(made, coordinates, has_canary):
    """The noised sum of gradients; all are zero, but that of the canary."""
    data = np.zeros((EXAMPLES, coordinates), np.float32)
    if has_canary:
        data[0] = np.random.default_rng(0).normal(size=coordinates)
    params = jnp.zeros(coordinates)
    sums = made.clipped_grad(loss)(params, jnp.asarray(data))
    transform = made.noise_addition_transform
    return np.asarray(transform.update(sums, transform.init(params))[0])


def is_reachable(noised, stddev):
    """Which numbers are stddev times a number of float32, rounded to float32."""
    stddev = np.float32(stddev)
    nearest = (noised.astype(np.float64) / np.float64(stddev)).astype(np.float32)
    below, above = (np.nextafter(nearest, np.float32(end)) for end in (-np.inf, np.inf))
    return np.any([stddev * z == noised for z in (nearest, below, above)], axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--coordinates", type=int, default=1000)
    given = parser.parse_args()
    for has_canary in (True, False):
        told = 0
        for _ in range(given.runs):
            made = plan()  # with a key of its own
            noised = released(made, given.coordinates, has_canary)
            told += not is_reachable(noised, made.noise_stddev).all()
        where = "with the record" if has_canary else "without it"
        print(f"{where}: said to be there in {told} of {given.runs} runs")
    print(
        f"epsilon {EPSILON:g} at delta {DELTA:g}, {given.coordinates} coordinates; "
        f"{platform.machine()} {jax.default_backend()}, {datetime.date.today()}, jax "
        f"{jax.__version__}, bevel {bevel.__version__}"
    )


if __name__ == "__main__":
    main()
