"""Turns the various errors of a full memory into a `FreeMemoryError`."""

import contextlib
from collections.abc import Iterator

from bevel.checks import in_one_line
from bevel.errors import BevelError, FreeMemoryError

# What XLA, the C++ library and the threads of Python say.
TEXTS = ("out of memory", "resource_exhausted", "bad_alloc", "can't start new thread")


@contextlib.contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Raises `FreeMemoryError` instead of any error that a full memory caused in this block."""
    try:
        yield
    except BevelError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise FreeMemoryError(
            f"the memory is full ({type(error).__name__}: {in_one_line(error, 120)}). A run in a "
            "folder has lost nothing that was charged or released: start again with more memory, a "
            "higher limit (`ulimit -v`), or a smaller microbatch_size, and it resumes. `bevel "
            "train --dry-run` shows what a step takes."
        ) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Returns whether an error, or one of its causes, reports a full memory."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, MemoryError) or any(words in text for words in TEXTS):
            return True
        error = error.__cause__
    return False
