"""The loss of one unit of privacy: an example, its augmented views, or the examples of a user.

`clipped_grad` clips the gradient of this loss as a whole, so the unit contributes once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from bevel.checks import function, whole_number
from bevel.clipping.program.coupling import Coupling, find_coupling
from bevel.clipping.program.shared_randomness import find_shared_mask
from bevel.errors import FixLossError
from bevel.training.framework_objects import explain_closed_over_state
from bevel.training.model_state import check_unchanged
from bevel.training.state import Trainable, TrainingState, joined, path_text, split

PyTree = Any


class LossFn(Protocol):
    """A loss function: `(params, data, prng) -> (loss, aux)`.

    It is called with one example at a time: `data` has a leading axis of size 1, and every example
    has a different key. `aux` is a tree of arrays, such as {"accuracy": ...}. If the trainer is
    given a `model_state`, the loss is a `LossFnWithState`.
    """

    def __call__(self, params: PyTree, data: PyTree, prng: jax.Array) -> tuple[jax.Array, Any]: ...


class LossFnWithState(Protocol):
    """A loss function that reads a model state: `(params, model_state, data, prng)`.

    `model_state` is the same at every step. The loss must not return a changed one in `aux`.
    """

    def __call__(
        self, params: PyTree, model_state: PyTree, data: PyTree, prng: jax.Array
    ) -> tuple[jax.Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Augmentation multiplicity: several views of an example, clipped together.

    The loss of an example is the mean over `views` augmented copies, before clipping (De et al.
    2022, arXiv:2204.13650). This reduces the variance of the gradient, costs `views` forward and
    backward passes per example, and does not change the privacy guarantee.

    Attributes:
      augment: `(data, prng) -> data`, applied to a batch of one example.
      views: the number of augmented copies of each example.
    """

    augment: Callable[[PyTree, jax.Array], PyTree]
    views: int = 1

    def __post_init__(self) -> None:
        function("augment", self.augment, "pass a function (data, prng) -> data")
        whole_number("views", self.views, 1, 2**20, "All views of an example are held at once.")


def contribution(
    loss_fn: LossFn | LossFnWithState, by_user: bool, augmentation: Augmentation | None
) -> Callable[..., tuple[jax.Array, Any]]:
    """Returns the loss of one unit: `(trainable, fixed, (data, is_missing), prng) -> (loss, aux)`.

    `fixed` is a pair of the frozen parameters and the model state, which is None if there is none.
    The loss of a user is the mean over the user's examples in the batch.
    """

    function: Callable[..., Any] = loss_fn

    def checked_call(
        params: PyTree, model_state: PyTree, data: PyTree, prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        arguments: tuple[Any, ...] = (params, data, prng)
        if model_state is not None:
            arguments = (params, model_state, data, prng)
        try:
            result = function(*arguments)
        except Exception as error:
            explain_closed_over_state(function, error)
            raise
        loss, aux = _checked(result)
        check_unchanged(aux, model_state)
        return loss, aux

    def example_loss(
        params: PyTree, model_state: PyTree, data: PyTree, prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        if augmentation is None:
            return checked_call(params, model_state, data, prng)

        def view_loss(key: jax.Array) -> tuple[jax.Array, Any]:
            augment_key, loss_key = jax.random.split(key)
            view = augmentation.augment(data, augment_key)
            return checked_call(params, model_state, view, loss_key)

        losses, aux = jax.vmap(view_loss)(jax.random.split(prng, augmentation.views))
        weights = jnp.full(augmentation.views, 1 / augmentation.views, losses.dtype)
        return losses @ weights, averaged(aux, weights)

    def user_loss(
        params: PyTree, model_state: PyTree, data: PyTree, is_missing: jax.Array, prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        present = ~is_missing
        # Missing examples have weight 0. They are filled with the user's first example instead of
        # zeros, because the loss may not be differentiable at zeros.
        filled = jax.tree.map(lambda x: jnp.where(_broadcast(present, x), x, x[:1]), data)
        keys = jax.random.split(prng, present.size)

        def loss_of_row(row: PyTree, key: jax.Array) -> tuple[jax.Array, Any]:
            return example_loss(params, model_state, jax.tree.map(lambda x: x[None], row), key)

        losses, aux = jax.vmap(loss_of_row)(filled, keys)
        weights = present.astype(losses.dtype)
        weights = weights / jnp.maximum(weights.sum(), 1)
        return losses @ weights, averaged(aux, weights)

    def loss(
        trainable: PyTree, fixed: tuple[PyTree, PyTree], batch: tuple[PyTree, Any], prng: jax.Array
    ) -> tuple[jax.Array, Any]:
        (frozen, model_state), (data, is_missing) = fixed, batch
        params = joined(trainable, frozen)
        if by_user:
            return user_loss(params, model_state, data, is_missing, prng)
        return example_loss(params, model_state, data, prng)

    return loss


def coupling_of_rows(
    loss_fn: LossFn | LossFnWithState,
    state: TrainingState,
    trainable: Trainable,
    data: PyTree,
    prng: jax.Array,
) -> Coupling | None:
    """Where a loss couples examples, from its program for two rows of a user. None if nowhere."""
    one_row = contribution(loss_fn, by_user=False, augmentation=None)
    trained, frozen = split(state.params, trainable)
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[2:]), x.dtype), data)
    arguments = (trained, (frozen, state.model_state), (rows, None), prng)
    try:
        program = jax.make_jaxpr(one_row)(*arguments)
    except Exception:  # the loss takes one example only
        return None
    params, fixed, batch, _ = (len(jax.tree.leaves(tree)) for tree in arguments)
    first = params + fixed
    return find_coupling(program, range(params), range(first, first + batch))


def shared_mask_line(
    loss: Callable[..., Any], trained: PyTree, fixed: PyTree, batch: PyTree, prng: jax.Array
) -> str:
    """Where examples share a mask, as ' at file:line', from a trace with the user's own calls."""
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), batch)
    first = len(jax.tree.leaves((trained, fixed)))
    try:
        program = jax.make_jaxpr(loss)(trained, fixed, row, prng)
    except Exception:  # it needs a mesh, or is a loss of users, whose rows have no such dimension
        return ""
    return str(find_shared_mask(program, range(first, len(program.jaxpr.invars))) or "")


def _broadcast(mask: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.broadcast_to(mask.reshape(-1, *(1,) * (like.ndim - 1)), like.shape)


def averaged(aux: PyTree, weights: jax.Array) -> PyTree:
    """Averages floats and booleans over the leading axis. Other leaves are returned unchanged."""

    def average(x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.bool_):
            x = x.astype(weights.dtype)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.tensordot(weights.astype(x.dtype), x, 1)

    return jax.tree.map(average, aux)


def _checked(result: Any) -> tuple[jax.Array, Any]:
    """Returns the loss and aux. Raises unless `result` is a pair whose loss is a scalar."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise FixLossError(
            f"loss_fn returned a {type(result).__name__}, but it must return a pair (loss, aux). "
            "If you have no auxiliary outputs, write `return loss, {}`."
        )
    loss, aux = result
    if jnp.shape(loss) != ():
        raise FixLossError(
            f"loss_fn returned a loss of shape {jnp.shape(loss)}. It must be a scalar, such as "
            "loss.mean()."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
        if not (hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)):
            raise FixLossError(
                f"aux contains a {type(leaf).__name__} at {path_text(path)!r}, but auxiliary "
                "outputs must be arrays or numbers: leave it out."
            )
    return loss, aux
