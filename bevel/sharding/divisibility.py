"""Switches off JAX's divisibility checks while one example is traced.

A batch of size 1 does not divide over a mesh, so JAX refuses to trace, for example,
`jit(in_shardings=P('data'))` or an Explicit `reshard(x, P('data'))` at that size. That program is
never lowered: bevel first moves the batch axes to the example axis. JAX's two divisibility checks
are therefore switched off while one example is traced, in that thread only.

Only this file and `source_lines.py` use `jax._src`. Tested with JAX 0.10.2, 0.11.2 and 0.12.0. If a
later version lacks one of the names, JAX's own check stays on.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from jax._src import core as _core
from jax._src import pjit as _pjit

_lock = threading.RLock()


@contextlib.contextmanager
def allow_uneven_shardings() -> Iterator[None]:
    """Switches off, in this thread, JAX's checks that mesh axes divide sharded dimensions."""
    thread = threading.get_ident()

    def in_this_thread(relaxed: Callable[..., Any], check: Callable[..., Any]) -> Any:
        def relaxed_or_check(*args: Any, **kwargs: Any) -> Any:
            return (relaxed if threading.get_ident() == thread else check)(*args, **kwargs)

        return relaxed_or_check

    with _lock, contextlib.ExitStack() as undo:
        check = getattr(_pjit, "pjit_check_aval_sharding", None)
        if check is not None:

            def uneven(shardings: Any, avals: Any, names: Any, what: str, **_: Any) -> None:
                check(shardings, avals, names, what, allow_uneven_sharding=True)

            _replace(undo, _pjit, "pjit_check_aval_sharding", in_this_thread(uneven, check))
        type_check = getattr(_core, "_check_divisibility", None)
        if type_check is not None:
            relaxed = in_this_thread(lambda *_: None, type_check)
            _replace(undo, _core, "_check_divisibility", relaxed)
        # Shardings that were accepted here must not stay in JAX's caches: other calls would skip
        # the checks.
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


def _replace(undo: contextlib.ExitStack, module: Any, name: str, value: Any) -> None:
    undo.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
