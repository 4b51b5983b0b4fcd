"""Errors of a full memory are recognised, and those of a full disk are not taken for them."""

import jax
import pytest

from bevel.errors import FixDataError, FreeMemoryError
from bevel.training.out_of_memory import explain_out_of_memory, is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."),
        ValueError("std::bad_alloc"),
    ],
)
def test_a_full_memory_is_explained(error):
    with pytest.raises(FreeMemoryError, match=r"memory is full.*resumes"), explain_out_of_memory():
        raise error
    wrapped = RuntimeError("save failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


def test_other_errors_pass_unchanged():
    with pytest.raises(FixDataError, match="out of memory"), explain_out_of_memory():
        raise FixDataError("a record says: out of memory")
    with pytest.raises(KeyError), explain_out_of_memory():
        raise KeyError("x")
    assert not is_out_of_memory(OSError(28, "No space left on device"))
    assert not is_out_of_memory(None)
