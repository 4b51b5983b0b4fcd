"""Decisions of one process. Two processes agree in test_two_processes.py."""

import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.training import process_agreement
from bevel.training.process_agreement import (
    agreed,
    any_of,
    check_same,
    is_first,
    joined_digests,
    of_all,
    together,
)


def test_alone_one_agrees_with_oneself():
    assert is_first() and together("nothing") is None
    assert agreed(3, 0.1) == [3, 0.1]
    assert any_of(True) and not any_of(False)
    assert of_all(np.arange(3)).tolist() == [[0, 1, 2]]
    check_same({"plan": "a"})


def test_who_differs_in_what_is_said_in_every_process(monkeypatch):
    """What process 0, 1 and 2 would send, for processes that differ in some parts."""

    def hashes(**parts):
        sent = []
        with monkeypatch.context() as patch:
            patch.setattr(process_agreement.jax, "process_count", lambda: 3)
            patch.setattr(
                process_agreement, "of_all", lambda x: sent.append(x) or np.stack([x] * 3)
            )
            check_same(parts)
        return sent[0]

    table = [hashes(plan="a", data="b"), hashes(plan="a", data="c"), hashes(plan="x", data="y")]
    monkeypatch.setattr(process_agreement.jax, "process_count", lambda: 3)
    monkeypatch.setattr(process_agreement, "of_all", lambda x: np.stack(table))
    said = "process 1 has another data; process 2 has another plan, another data"
    with pytest.raises(FixArgumentsError, match=said):
        check_same({"plan": "a", "data": "b"})


def test_digests_of_rows_are_joined_step_by_step():
    one = joined_digests([b"a" * 16, b"b" * 16])
    assert len(one) == 2 and one[0] != one[1] and joined_digests([]) == []
    assert joined_digests([b"a" * 16]) == one[:1]
