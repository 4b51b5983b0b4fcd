"""Agreement in a single process. For two processes see test_two_processes.py."""

import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.training import process_agreement
from bevel.training.process_agreement import (
    any_process,
    barrier,
    check_same,
    from_first_process,
    gathered,
    is_first,
    joined_digests,
)


def test_a_single_process_agrees_with_itself():
    assert is_first() and barrier("nothing") is None
    assert from_first_process(3, 0.1) == [3, 0.1]
    assert any_process(True) and not any_process(False)
    assert gathered(np.arange(3)).tolist() == [[0, 1, 2]]
    check_same({"plan": "a"})


def test_every_process_names_what_differs_in_which_process(monkeypatch):
    """Simulates what processes 0, 1 and 2 would send if they differ in some parts."""

    def hashes(**parts):
        sent = []
        with monkeypatch.context() as patch:
            patch.setattr(process_agreement.jax, "process_count", lambda: 3)
            patch.setattr(
                process_agreement, "gathered", lambda x: sent.append(x) or np.stack([x] * 3)
            )
            check_same(parts)
        return sent[0]

    table = [hashes(plan="a", data="b"), hashes(plan="a", data="c"), hashes(plan="x", data="y")]
    monkeypatch.setattr(process_agreement.jax, "process_count", lambda: 3)
    monkeypatch.setattr(process_agreement, "gathered", lambda x: np.stack(table))
    said = "process 1 differs in data; process 2 differs in plan, data"
    with pytest.raises(FixArgumentsError, match=said):
        check_same({"plan": "a", "data": "b"})


def test_digests_of_rows_are_joined_step_by_step():
    one = joined_digests([b"a" * 16, b"b" * 16])
    assert len(one) == 2 and one[0] != one[1] and joined_digests([]) == []
    assert joined_digests([b"a" * 16]) == one[:1]


def test_rows_that_were_not_hashed_are_not_exchanged(monkeypatch):
    monkeypatch.setattr(process_agreement, "gathered", pytest.fail)
    assert joined_digests([b"", b""]) == []
