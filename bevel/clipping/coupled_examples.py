"""Warns once about a loss that couples the examples of a batch.

`clipped_grad` evaluates such a loss on one example at a time, which is private, but seldom what was
meant: the statistics of BatchNorm become those of a single example, and its gradient vanishes.
"""

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from bevel.clipping.arguments import Call, Leaves
from bevel.clipping.options import Task
from bevel.clipping.program.coupling import Coupling, find_coupling
from bevel.clipping.program.trace import ExampleFunction, TracedExample, trace

# Losses that were warned about, or whose caller decides what to do.
_QUIET: weakref.WeakSet[Any] = weakref.WeakSet()

EXPLANATION = (
    "Gradients are computed on one example at a time: a statistic over the batch would be that of "
    "one example, and there are no values of other examples, so the gradients would be zero or "
    "meaningless. Use GroupNorm or LayerNorm instead of BatchNorm, or "
    "frozen statistics."
)


def quiet(loss: Callable[..., Any]) -> None:
    """Leaves it to the caller to report a coupling in this loss."""
    with contextlib.suppress(TypeError):  # an object without weak references warns again
        _QUIET.add(loss)


def warn_once(loss: Callable[..., Any], coupling: Coupling | None) -> None:
    with contextlib.suppress(TypeError):
        if loss in _QUIET:
            return
    if coupling is not None:
        quiet(loss)
        warnings.warn(f"the loss couples examples: {coupling}. {EXPLANATION}", stacklevel=3)


def coupling_of(task: Task, call: Call, leaves: Leaves, loss: TracedExample) -> Coupling | None:
    """Where the loss couples examples, or None.

    The program of one example is searched first. At batch size 1, a reshape may hide which
    dimension holds the batch, so what is found there is confirmed in the program of two examples. A
    loss that does not couple examples is therefore not traced again.
    """
    if not (task.gradient and task.keep_batch_dim):
        return None
    count = len(leaves.params)
    params, examples = range(count), range(count, count + len(leaves.batch))
    if find_coupling(loss.jaxpr, params, examples) is None:
        return None
    function = ExampleFunction(task.fun, call, task.has_aux, task.keep_batch_dim)
    try:
        types = function.types(leaves, loss.mesh, times=2)
        two = trace(function, types, loss.mesh, inline=False)
    except Exception:  # the loss takes one example only
        return None
    return find_coupling(two.jaxpr, params, examples)
