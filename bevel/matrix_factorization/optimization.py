"""The float64 optimizer behind all factorizations.

Losses are JAX functions, differentiated and compiled by JAX. The optimizer is SciPy's L-BFGS-B on
the host, or an optax optimizer. Everything runs on the CPU, where float64 is cheap.
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
    """Passed to the callback after each step: the step (from 0), and loss and gradient at `params`.

    Values are NumPy arrays; the type of `state` depends on the optimizer.
    """

    step: int
    loss: Any
    grad: Any
    params: Any
    state: Any


CallbackFnType = Callable[[CallbackArgs], Any]


def jax_enable_x64(fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Runs `fn` in float64 on the CPU, and returns its arrays as NumPy arrays.

    The caller usually has x64 off, where the next JAX operation would round a float64 JAX array to
    float32, or reject it. With traced arguments `fn` runs unchanged, in the caller's precision.
    """

    @functools.wraps(fn)
    def in_float64(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return fn(*args, **kwargs)
        with jax.enable_x64(True), on_the_cpu():
            return jax.tree.map(_as_numpy, fn(*args, **kwargs))

    return in_float64


def on_the_cpu() -> Any:
    """A context that places new arrays on the CPU, if this process has a CPU JAX device."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return contextlib.nullcontext()


def namespace(*values: Any) -> Any:
    """Returns `jax.numpy` if any value is traced, else `numpy`, which compiles nothing."""
    return jnp if any(isinstance(x, jax.core.Tracer) for x in values) else np


def _as_numpy(x: Any) -> Any:
    """Converts a concrete JAX array to a NumPy array or scalar; returns anything else unchanged."""
    concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return np.array(x)[()] if concrete else x


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
    """Minimises a loss over a tree of arrays, starting from `params`, in float64.

    Args:
      loss_fn: a JAX function of the tree, which is differentiated and compiled. It must be finite
        at the start; the line search backtracks from points where it is not.
      max_optimizer_steps: each step is a line search, usually with one or two evaluations.
      grad: whether `loss_fn` returns (loss, gradient). It is then called unchanged, so compile it
        with `jax.jit`.
      callback: called with `CallbackArgs` after each step; return True to stop.
      optimizer: an optax transformation, for instance `optax.lbfgs()`. None uses SciPy's L-BFGS-B,
        which compiles only the loss and stops when it has converged.

    Returns:
      The parameters after the last step, as NumPy arrays.
    """
    whole_number("max_optimizer_steps", max_optimizer_steps, least=0)
    params = jax.tree.map(lambda x: jnp.asarray(x, float), params)
    value_and_grad = loss_fn if grad else jax.jit(jax.value_and_grad(loss_fn))
    loss, _ = value_and_grad(params)
    if not np.isfinite(loss):
        raise FixArgumentsError(
            f"the loss at the starting point is {loss}: start where it is finite."
        )
    if max_optimizer_steps == 0 or not any(x.size for x in jax.tree.leaves(params)):
        return params
    run = _run_scipy if optimizer is None else functools.partial(_run_optax, optimizer=optimizer)
    return run(value_and_grad, params, max_optimizer_steps, callback)


def _run_scipy(
    value_and_grad: Callable[[ParamT], Any], params: ParamT, steps: int, callback: CallbackFnType
) -> ParamT:
    import scipy.optimize

    # NumPy splits and joins the trees, because JAX would dispatch an operation for every leaf.
    leaves, treedef = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])

    def to_tree(x: np.ndarray) -> ParamT:
        parts = zip(np.split(x, ends[:-1]), leaves, strict=True)
        return jax.tree.unflatten(treedef, [part.reshape(leaf.shape) for part, leaf in parts])

    def to_vector(tree: ParamT) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    ceiling = np.inf
    last: tuple[np.ndarray, float, np.ndarray]

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal ceiling, last
        value, tree = value_and_grad(to_tree(x))
        loss, gradient = float(value), to_vector(tree)
        if not (loss < ceiling and np.all(np.isfinite(gradient))):
            # The line search interpolates. After an infinite or huge loss its next step would be so
            # short that it looks converged. A moderate ceiling makes it backtrack moderately.
            loss, gradient = ceiling, np.zeros_like(gradient)
        if not np.isfinite(ceiling):
            ceiling = _loss_ceiling(loss)
        last = x.copy(), loss, gradient
        return loss, gradient

    step = 0

    def after_step(intermediate_result: Any) -> None:
        nonlocal ceiling, step
        x = intermediate_result.x.copy()  # SciPy reuses this buffer
        if not np.array_equal(last[0], x):
            evaluate(x)
        ceiling = _loss_ceiling(last[1])
        if callback(CallbackArgs(step, last[1], to_tree(last[2]), to_tree(x), intermediate_result)):
            raise StopIteration
        step += 1

    options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-10}
    result = scipy.optimize.minimize(
        evaluate,
        to_vector(params),
        jac=True,
        method="L-BFGS-B",
        callback=after_step,
        options=options,
    )
    return to_tree(result.x)


def _loss_ceiling(loss: float) -> float:
    """A loss that the line search never accepts when the current loss is `loss`."""
    return loss + 10 * (abs(loss) + 1)


def _run_optax(
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
        host_params = jax.tree.map(_as_numpy, params)
        if callback(CallbackArgs(step, loss, gradient, host_params, state)):
            break
    return params
