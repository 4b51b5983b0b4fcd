"""The loss of what is clipped as one: an example, its augmented views, or all that a user gave.

`clipped_grad` bounds the gradient of this loss, so everything in it counts once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from bevel.checks import whole_number
from bevel.errors import FixLossError
from bevel.training.state import joined

PyTree = Any


class LossFn(Protocol):
    """The loss of a batch, and what else to look at: `(params, data, prng) -> (loss, aux)`.

    It is evaluated on one example at a time, `data` having a leading axis of 1, with a key of its
    own for each. `aux` is a tree of arrays, such as {"accuracy": ...}.
    """

    def __call__(self, params: PyTree, data: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Several views of one example, one clip (De et al. 2022, arXiv:2204.13650).

    The gradient of an example is that of the mean of the losses of `views` augmented copies: it has
    less variance, costs as many forward and backward passes, and nothing in privacy.

    Attributes:
      augment: `(data, prng) -> data`, on a batch of one example.
      views: how many.
    """

    augment: Callable[[PyTree, jax.Array], PyTree]
    views: int = 1

    def __post_init__(self) -> None:
        whole_number("views", self.views)


def contribution(
    loss_fn: LossFn, by_user: bool, augmentation: Augmentation | None
) -> Callable[..., tuple[jax.Array, Any]]:
    """`(trainable, frozen, (data, is_missing), prng) -> (loss, aux)` of one unit of privacy.

    A user's loss is the mean of the losses of the examples that the user has in the batch.
    """

    def of_example(params: PyTree, data: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]:
        if augmentation is None:
            return _checked(loss_fn(params, data, prng))

        def of_view(key: jax.Array) -> tuple[jax.Array, Any]:
            for_view, for_loss = jax.random.split(key)
            view = augmentation.augment(data, for_view)
            return _checked(loss_fn(params, view, for_loss))

        losses, aux = jax.vmap(of_view)(jax.random.split(prng, augmentation.views))
        even = jnp.full(augmentation.views, 1 / augmentation.views, losses.dtype)
        return losses @ even, averaged(aux, even)

    def of_user(
        params: PyTree, data: PyTree, is_missing: jax.Array, prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        present = ~is_missing
        # A user has at least one example, in the first place. It stands in where there is none,
        # with weight 0: a loss may not be differentiable at zeros.
        filled = jax.tree.map(lambda x: jnp.where(_spread(present, x), x, x[:1]), data)
        keys = jax.random.split(prng, present.size)

        def of_one(one: PyTree, key: jax.Array) -> tuple[jax.Array, Any]:
            return of_example(params, jax.tree.map(lambda x: x[None], one), key)

        losses, aux = jax.vmap(of_one)(filled, keys)
        share = present.astype(losses.dtype)
        share = share / jnp.maximum(share.sum(), 1)
        return losses @ share, averaged(aux, share)

    def loss(
        trainable: PyTree, frozen: PyTree, batch: tuple[PyTree, Any], prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        params, (data, is_missing) = joined(trainable, frozen), batch
        if by_user:
            return of_user(params, data, is_missing, prng)
        return of_example(params, data, prng)

    return loss


def _spread(mask: jax.Array, like: jax.Array) -> jax.Array:
    """A mask of rows, for all elements of the rows of `like`."""
    return jnp.broadcast_to(mask.reshape(-1, *(1,) * (like.ndim - 1)), like.shape)


def averaged(aux: PyTree, weights: jax.Array) -> PyTree:
    """Numbers and truth values averaged over their leading axis; the rest as it is."""

    def one(x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.bool_):
            x = x.astype(weights.dtype)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.tensordot(weights.astype(x.dtype), x, 1)

    return jax.tree.map(one, aux)


def _checked(result: Any) -> tuple[jax.Array, Any]:
    """A pair of a scalar loss and aux, or an error that shows the right form."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise FixLossError(
            f"loss_fn gave a {type(result).__name__}: it takes (params, data, prng) and returns "
            "(loss, aux). Return `loss, {}` if there is nothing else to look at."
        )
    loss, aux = result
    if jnp.shape(loss) != ():
        raise FixLossError(
            f"the loss has shape {jnp.shape(loss)}: return a number, such as loss.mean()."
        )
    return loss, aux
