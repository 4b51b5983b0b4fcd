"""Trace one example of a program that was written for a whole batch on a mesh.

One example is smaller than the mesh, and JAX refuses to trace, say, `jit(in_shardings=P('data'))`
or an Explicit `reshard(x, P('data'))` at batch size 1. Nothing is ever run at that size: bevel
moves the batch axes onto the example axis before anything is lowered. So while one example is
traced, in this thread only, the two divisibility checks are off.

This file and `source_lines.py` are the only ones that touch `jax._src`. Tested on jax 0.10.2,
0.11.2 and 0.12.0. Where a future JAX lacks a name, tracing goes on with JAX's own checks.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax._src import core as _core
from jax._src import pjit as _pjit

_lock = threading.RLock()


@contextlib.contextmanager
def one_example_may_be_smaller_than_the_mesh() -> Iterator[None]:
    """Turns off, for this thread, JAX's checks that a sharded dimension divides."""
    me = threading.get_ident()

    def unless_mine(check: Callable[..., Any], relaxed: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **kwargs: Any) -> Any:
            mine = threading.get_ident() == me
            return (relaxed if mine else check)(*args, **kwargs)

        return checked

    with _lock, contextlib.ExitStack() as undo:
        argument_check = getattr(_pjit, "pjit_check_aval_sharding", None)
        if argument_check is not None:

            def allow_uneven(shardings: Any, avals: Any, names: Any, what: str, **_: Any) -> None:
                argument_check(shardings, avals, names, what, allow_uneven_sharding=True)

            _swap(
                undo, _pjit, "pjit_check_aval_sharding", unless_mine(argument_check, allow_uneven)
            )
        type_check = getattr(_core, "_check_divisibility", None)
        if type_check is not None:
            _swap(undo, _core, "_check_divisibility", unless_mine(type_check, lambda *_: None))
        # What was accepted while relaxed must not be remembered as accepted.
        for module, cached in (
            (_pjit, "_process_in_axis_resources"),
            (_pjit, "_check_and_canonicalize_out_shardings"),
            (_pjit, "_infer_params_cached"),
            (_core, "get_sharding"),
        ):
            clear = getattr(getattr(module, cached, None), "cache_clear", None)
            if clear is not None:
                undo.callback(clear)
        yield


def _swap(undo: contextlib.ExitStack, module: Any, name: str, value: Any) -> None:
    undo.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
