"""The list of deliberate breaks fits the code. `make test-breaks` runs them."""

import collections

from breaks import read_breaks


def test_every_break_has_its_place_in_the_code_and_its_tests():
    problems = [problem for broken in read_breaks() for problem in broken.problems()]
    assert not problems, "correct tests/breaks.toml: " + "; ".join(problems)


def test_there_are_many_and_each_promise_is_named_once():
    names = collections.Counter(broken.name for broken in read_breaks())
    assert len(names) >= 40
    assert max(names.values()) == 1


def test_breaks_are_spread_over_the_package():
    rooms = {broken.file.partition("/")[0] for broken in read_breaks()}
    assert rooms >= {"accounting", "batch_selection", "clipping", "execution_plan"}
    assert rooms >= {"noise_addition", "report", "sharding", "training"}
