"""Decisions of one process. Two processes agree in test_two_processes.py."""

from bevel.training.agreement import agreed, any_of, is_first, together


def test_alone_one_agrees_with_oneself():
    assert is_first() and together("nothing") is None
    assert agreed(3, 0.1) == [3, 0.1]
    assert any_of(True) and not any_of(False)
