"""See how each parameter's gradients are clipped, and what that costs, with `bevel.explain`.

There is nothing to configure: bevel chooses the cheapest norm rule for each shape, and the table
says which.
"""

import jax
import jax.numpy as jnp

import bevel

VOCABULARY, WIDTH, HIDDEN = 512, 64, 256


def loss(params, tokens):
    """A small language model whose embedding is also its output head."""
    x = params["embedding"][tokens[:, :-1]]

    def block(x, layer):
        return x + jnp.tanh(x @ layer["up"]) @ layer["down"], None

    x = jax.lax.scan(jax.checkpoint(block), x, params["layers"])[0]
    scores = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "embedding": 0.1 * jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
        "layers": {
            "up": 0.1 * jax.random.normal(keys[1], (4, WIDTH, HIDDEN)),
            "down": 0.1 * jax.random.normal(keys[2], (4, HIDDEN, WIDTH)),
        },
    }
    tokens = jax.random.randint(keys[3], (8, 17), 0, VOCABULARY)
    grad_fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    explained = bevel.explain(grad_fn, params, tokens)
    print(explained)
    # The embedding has two uses, and their cross terms enter the norm.
    assert "1 lookup, 1 dense" in {row.uses for row in explained.rows}
    # Storing the values of all layers would defeat the checkpoint. The line about memory says what
    # happens instead, with estimates. A limit, here in multiples of the temporaries of `jax.grad`,
    # changes the choice and nothing else.
    assert explained.memory.mode != "bookkeeping"
    generous = bevel.clipped_grad(loss, l2_clip_norm=1.0, memory=4.0)
    print(bevel.explain(generous, params, tokens).memory)
    for one, other in zip(
        jax.tree.leaves(grad_fn(params, tokens)),
        jax.tree.leaves(generous(params, tokens)),
        strict=True,
    ):
        assert jnp.allclose(one, other, atol=1e-5)


if __name__ == "__main__":
    main()
