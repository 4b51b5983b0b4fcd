"""Random small networks, to compare clipping with the oracle where nobody chose the shapes.

XLA's partitioner and batching rules have failed for single combinations of kernel, channels and
mesh, so sizes are drawn small and odd.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


class RandomNetwork:
    """A loss of random layers on images or sequences, with its parameters and a batch."""

    def __init__(self, seed, batch_size):
        self.rng = np.random.default_rng([seed, 11])
        self.params, self.layers = {}, []
        self.grouped = set()  # kernels that XLA cannot split, in `jax.grad` either
        self.spatial = self.one_of(0, 1, 2)
        features = self.one_of(2, 3, 4, 5, 8)
        sizes = [self.one_of(5, 6, 8) for _ in range(self.spatial)]
        self.batch = {
            "x": self.rng.normal(size=(batch_size, *sizes, features)).astype(np.float32),
            "y": self.rng.normal(size=(batch_size, 3)).astype(np.float32),
        }
        for _ in range(self.one_of(1, 2, 3)):
            kinds = [self.dense, self.scanned, self.norm]
            kinds += [self.convolution] * 3 if self.spatial else []
            kinds += [self.attention] if self.spatial == 1 else []
            layer, features = self.one_of(*kinds)(features)
            self.layers.append(jax.checkpoint(layer) if self.one_of(True, False, False) else layer)
        self.head = self.param(features, 3)

    def one_of(self, *options):
        return options[self.rng.integers(len(options))]

    def param(self, *shape):
        name = f"p{len(self.params)}"
        scale = 1 / np.sqrt(max(1, np.prod(shape[:-1])))
        self.params[name] = (scale * self.rng.normal(size=shape)).astype(np.float32)
        return name

    def dense(self, features):
        width = self.one_of(3, 4, 8, 12)
        w, b = self.param(features, width), self.param(width)
        return lambda p, x: jnp.tanh(x @ p[w] + along(p[b], x)), width

    def norm(self, features):
        gain = self.param(features)

        def layer(p, x):
            x = x - jnp.mean(x, axis=-1, keepdims=True)
            return (
                x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1) * along(p[gain], x)
            )

        return layer, features

    def scanned(self, features):
        stack = self.param(self.one_of(2, 3), features, features)

        def layer(p, x):
            return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, p[stack])[0]

        return layer, features

    def attention(self, features):
        qkv = self.param(features, 3 * features)

        def layer(p, x):
            q, k, v = jnp.split(x @ p[qkv], 3, axis=-1)
            return x + jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), axis=-1) @ v

        return layer, features

    def convolution(self, features):
        groups = self.one_of(1, 1, features)
        width = groups * self.one_of(1, 2, 4)
        window = [self.one_of(1, 2, 3) for _ in range(self.spatial)]
        kernel = self.param(*window, features // groups, width)
        if groups > 1:
            self.grouped.add(kernel)
        letters = "HW"[: self.spatial]
        convolve = functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=[self.one_of(1, 1, 2)] * self.spatial,
            padding=self.one_of("SAME", [(1, 0)] * self.spatial),
            rhs_dilation=[self.one_of(1, 1, 2)] * self.spatial,
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=groups,
        )
        return lambda p, x: jnp.tanh(convolve(x, p[kernel])), width

    def loss(self, params, batch):
        x = batch["x"]
        for layer in self.layers:
            x = layer(params, x)
        pooled = jnp.mean(x, axis=tuple(range(1, x.ndim - 1))) @ params[self.head]
        return jnp.mean(jnp.sum((pooled - batch["y"]) ** 2, axis=-1))


def along(vector, x):
    return vector.reshape((1,) * (x.ndim - 1) + vector.shape)
