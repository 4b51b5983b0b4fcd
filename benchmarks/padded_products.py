"""Times per-example gradients of a matrix with an odd dimension, with and without padding.

    python benchmarks/padded_products.py

For shapes of the models in the tables with a vocabulary of 50,257, prints the milliseconds of the
product 'btv,btd->bvd' in bfloat16, of the same product with v padded to a multiple of 8 (including
the copy), of the copy alone, and of a product where v is already such a multiple, with the GB of
temporaries. Without a GPU, it uses one small shape. `bevel/clipping/choose.py` weighs these costs
when it considers forming per-example gradients.
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

VOCABULARY = 50257
SHAPES = {"gpt2 32": (32, 512, 768), "gpt2 128": (128, 512, 768), "1.3b": (8, 1024, 2048)}
STEPS = 8


def product(g: jax.Array, h: jax.Array) -> jax.Array:
    dimensions = (((1,), (1,)), ((0,), (0,)))
    return jax.lax.dot_general(g, h, dimensions, preferred_element_type=jnp.bfloat16)


def padded(g: jax.Array, h: jax.Array | None = None) -> jax.Array:
    del h
    return jnp.pad(g, ((0, 0), (0, 0), (0, -g.shape[2] % 8)))


def padded_product(g: jax.Array, h: jax.Array) -> jax.Array:
    return product(padded(g), h)


def measure(form: Callable[..., jax.Array], g: jax.Array, h: jax.Array) -> str:
    """Median milliseconds, and the memory of temporaries."""
    program = jax.jit(form).lower(g, h).compile()
    jax.block_until_ready(program(g, h))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        jax.block_until_ready(program(g, h))
        seconds.append(time.perf_counter() - start)
    held = program.memory_analysis().temp_size_in_bytes
    return f"{1e3 * statistics.median(seconds):.2f} ms, {held / 1e9:.2f} GB"


def random(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def main() -> None:
    on_gpu = jax.default_backend() == "gpu"
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    for name, (b, t, d) in (SHAPES if on_gpu else {"small": (2, 8, 16)}).items():
        odd = VOCABULARY if on_gpu else 1027
        h, g = random(0, b, t, d), random(1, b, t, odd)
        for form in (product, padded_product, padded):
            print(f"{name:10} {form.__name__:16} {measure(form, g, h)}", flush=True)
        g = random(1, b, t, odd + -odd % 8)
        print(f"{name:10} {'even product':16} {measure(product, g, h)}", flush=True)


if __name__ == "__main__":
    main()
