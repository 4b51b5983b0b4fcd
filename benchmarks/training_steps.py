"""Whole training steps for `clipping.py`: gradient and Adam, or clipping, noise and Adam.

The state is donated, as in training. Adam is written here, so that optax need not be installed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel.noise_addition import keys
from bevel.noise_addition.correlation import NoCorrelation
from bevel.noise_addition.gaussian_noise import GaussianNoise
from bevel.noise_addition.noise_layout import SupportedStrategies

NOISE_MULTIPLIER, RATE = 1.0, 1e-5


class State(NamedTuple):
    params: Any
    mean: Any
    square: Any
    count: Any
    noise: Any


def adam(state: State, gradient: Any) -> State:
    count = state.count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mean, gradient)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.square, gradient)
    rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    step = lambda p, m, v: p - (rate * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype)  # noqa: E731
    return State(jax.tree.map(step, state.params, mean, square), mean, square, count, state.noise)


class TrainingStep:
    """A compiled step with its own donated state. Calling it with any parameters takes a step."""

    def __init__(self, gradient: Callable[..., Any], params: Any, stddev: float | None) -> None:
        self.gradient, self.noise = gradient, None
        if stddev is not None:
            layout = SupportedStrategies.DEFAULT
            key = keys.noise_key(None)
            self.noise = GaussianNoise(key, stddev, NoCorrelation(), None, layout, None)
        zeros = lambda: jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)  # noqa: E731
        noise = self.noise.init(params) if self.noise else ()
        copied = jax.tree.map(jnp.copy, params)  # other columns need `params`
        self.state = State(copied, zeros(), zeros(), jnp.zeros(()), noise)
        self.compiled: Any = None

    def step(self, state: State, *arguments: Any) -> State:
        gradient = self.gradient(state.params, *arguments)
        if self.noise is not None:
            gradient, noise = self.noise.update(gradient, state.noise)
            state = state._replace(noise=noise)
        return adam(state, gradient)

    def __call__(self, params: Any, *arguments: Any) -> Any:
        del params
        self.state = self.compiled(self.state, *arguments)
        return self.state.count
