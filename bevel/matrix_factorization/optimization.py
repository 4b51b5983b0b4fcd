"""L-BFGS in float64: what all factorizations are optimised with.

Losses are JAX functions, differentiated and compiled by JAX. The steps are SciPy's L-BFGS-B, on the
host, or those of an optax optimizer. Everything runs on the CPU, where float64 is cheap.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

ParamT = Any
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class CallbackArgs:
    """What a callback sees after each step: the step from 0, and loss and gradient at params.

    Numbers are NumPy's; `state` is what the optimizer keeps, and differs between optimizers.
    """

    step: int
    loss: Any
    grad: Any
    params: Any
    state: Any


CallbackFnType = Callable[[CallbackArgs], Any]


def jax_enable_x64(fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Runs `fn` in float64 on the CPU, and hands out its arrays as NumPy arrays.

    JAX arrays of float64 would be rounded to float32, or refused, by the first operation outside,
    where x64 is usually off. With traced arguments `fn` runs as it is, in the caller's precision.
    """

    @functools.wraps(fn)
    def in_float64(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return fn(*args, **kwargs)
        with jax.enable_x64(True), on_the_cpu():
            return jax.tree.map(_as_numpy, fn(*args, **kwargs))

    return in_float64


def on_the_cpu() -> Any:
    """Places new arrays on the CPU, if this process has one as a JAX device."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()


def namespace(*values: Any) -> Any:
    """`jax.numpy` if any of the values is traced, else `numpy`: plain numbers compile nothing."""
    return jnp if any(isinstance(x, jax.core.Tracer) for x in values) else np


def _as_numpy(x: Any) -> Any:
    """A JAX array as a NumPy array, or as a NumPy number if it has no axes; all else as it is."""
    known = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return np.array(x)[()] if known else x


@jax_enable_x64
def optimize(
    loss_fn: Callable[[ParamT], Any],
    params: ParamT,
    *,
    max_optimizer_steps: int = 250,
    grad: bool = False,
    callback: CallbackFnType = lambda _: None,
    optimizer: Any = None,
) -> ParamT:
    """Minimises a loss of a tree of arrays, from `params`, in float64.

    Args:
      loss_fn: a JAX function of the tree; it is differentiated and compiled. Where it is not finite
        the line search turns back; at the start it must be finite.
      max_optimizer_steps: each step is a line search, mostly of one or two evaluations.
      grad: `loss_fn` returns (loss, gradient) and is called as it is: compile it with `jax.jit`.
      callback: called after each step with `CallbackArgs`; True ends the optimisation.
      optimizer: an optax transformation, for instance `optax.lbfgs()`. None is SciPy's L-BFGS-B,
        which compiles nothing but the loss and ends by itself when it has converged.

    Returns:
      The tree of the last step, of NumPy arrays.
    """
    whole_number("max_optimizer_steps", max_optimizer_steps, least=0)
    params = jax.tree.map(lambda x: jnp.asarray(x, float), params)
    value_and_grad = loss_fn if grad else jax.jit(jax.value_and_grad(loss_fn))
    loss, _ = value_and_grad(params)
    if not np.isfinite(loss):
        raise FixArgumentsError(
            f"the loss of the starting point is {loss}: start where it is finite."
        )
    if max_optimizer_steps == 0 or not any(x.size for x in jax.tree.leaves(params)):
        return params
    run = _by_scipy if optimizer is None else functools.partial(_by_optax, optimizer=optimizer)
    return run(value_and_grad, params, max_optimizer_steps, callback)


def _by_scipy(
    value_and_grad: Callable[[ParamT], Any], params: ParamT, steps: int, callback: CallbackFnType
) -> ParamT:
    import scipy.optimize

    # Trees are cut and joined by NumPy: JAX would dispatch an operation for every leaf.
    leaves, treedef = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])

    def tree_of(x: np.ndarray) -> ParamT:
        parts = zip(np.split(x, ends[:-1]), leaves, strict=True)
        return jax.tree.unflatten(treedef, [part.reshape(leaf.shape) for part, leaf in parts])

    def vector_of(tree: ParamT) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    ceiling = np.inf
    last: tuple[np.ndarray, float, np.ndarray]

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal ceiling, last
        value, tree = value_and_grad(tree_of(x))
        loss, gradient = float(value), vector_of(tree)
        if not (loss < ceiling and np.all(np.isfinite(gradient))):
            # The search interpolates: beside an infinite or huge loss its next step would be so
            # short that it looks converged. A low wall makes it turn back by a moderate factor.
            loss, gradient = ceiling, np.zeros_like(gradient)
        if not np.isfinite(ceiling):
            ceiling = _wall(loss)
        last = x.copy(), loss, gradient
        return loss, gradient

    step = 0

    def after_step(intermediate_result: Any) -> None:
        nonlocal ceiling, step
        x = intermediate_result.x.copy()  # SciPy writes into it again
        if not np.array_equal(last[0], x):
            evaluate(x)
        ceiling = _wall(last[1])
        if callback(CallbackArgs(step, last[1], tree_of(last[2]), tree_of(x), intermediate_result)):
            raise StopIteration
        step += 1

    options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-10}
    result = scipy.optimize.minimize(
        evaluate,
        vector_of(params),
        jac=True,
        method="L-BFGS-B",
        callback=after_step,
        options=options,
    )
    return tree_of(result.x)


def _wall(loss: float) -> float:
    """A loss that is far too high to be accepted from where the search stands."""
    return loss + 10 * (abs(loss) + 1)


def _by_optax(
    value_and_grad: Callable[[ParamT], Any],
    params: ParamT,
    steps: int,
    callback: CallbackFnType,
    *,
    optimizer: Any,
) -> ParamT:
    import optax

    optimizer = optax.with_extra_args_support(optimizer)
    state = optimizer.init(params)

    @jax.jit
    @jax.numpy_dtype_promotion("standard")  # optax mixes int32 and int64
    def one_step(params: ParamT, state: Any) -> tuple[ParamT, Any]:
        loss, gradient = value_and_grad(params)
        updates, state = optimizer.update(
            gradient,
            state,
            params,
            value=loss,
            grad=gradient,
            value_fn=lambda p: value_and_grad(p)[0],
        )
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = one_step(params, state)
        loss, gradient = jax.tree.map(_as_numpy, value_and_grad(params))
        seen = jax.tree.map(_as_numpy, params)
        if callback(CallbackArgs(step, loss, gradient, seen, state)):
            break
    return params
