"""A first learning rate from the noise of a run, without looking at any data.

With gradients that are divided by the clip norm, the mean gradient g of a step has norm at most 1,
and the noise z has norm about s = noise_multiplier / batch_size * sqrt(parameters). If the
parameters have to move by a distance R, gradient descent on a convex loss with steps g + z does
best with the learning rate

    R / sqrt(steps * (1 + s^2))

(Bassily et al. 2014, arXiv:1405.7085): the movements that do not agree, of norm sqrt(1 + s^2), then
add up to R over all steps, like a random walk. Momentum m multiplies every movement by 1 / (1 - m).
Adam divides each coordinate by its own size, sqrt((1 + s^2) / parameters), so its learning rate is
that of gradient descent times this number.

R depends on the model and the data. `DISTANCE` suits small models that start from random or zero
weights; `benchmarks/learning_rate.py` measures it in several settings.
"""

import math

from bevel.choosing.noise_curve import NoisePoint

DISTANCE = 25.0


def learning_rate_for(
    point: NoisePoint, parameters: int | None, optimizer: str = "sgd", momentum: float = 0.9
) -> float:
    """The learning rate with one significant digit.

    If the number of parameters is not known, the noise is assumed to be as large as the gradient.
    """
    noise = 1.0 if parameters is None else noise_norm(point, parameters)
    size = math.sqrt(1 + noise**2)
    rate = DISTANCE / (math.sqrt(point.steps) * size)
    if optimizer == "sgd":
        rate *= 1 - momentum
    else:
        # Without a number of parameters, a million of them.
        rate *= size / math.sqrt(parameters or 10**6)
    return float(f"{rate:.1g}")


def noise_norm(point: NoisePoint, parameters: int) -> float:
    """The norm of the noise in the mean gradient of a step, in units of the clip norm."""
    return point.noise_per_step * math.sqrt(parameters)
