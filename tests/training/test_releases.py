"""How releases were computed, and when they may be run again with the same noise."""

import dataclasses

import pytest

from bevel.training import releases
from bevel.training.releases import ReleaseRecord, Releases, describe_change, differences

FIRST = ReleaseRecord(0, 0, 2, ["b0"], ["r0", "r1"], ["b2"], {"mesh": None, "program": "p" * 64})
SECOND = dataclasses.replace(FIRST, first=2, stop=4, before=["b2"], rows=["r2", "r3"])


def rows(*found):
    return lambda first, stop: list(found)[: stop - first]


def test_a_chain_of_releases_is_found_and_written_once(tmp_path):
    path = tmp_path / "releases.jsonl"
    made = Releases(path, write=True)
    for release in (FIRST, SECOND, SECOND):
        made.add(release)
    made.close()
    assert len(path.read_text().splitlines()) == 2 and path.stat().st_mode & 0o077 == 0
    read = Releases(path, write=False)
    assert read.between(0, 4, 0) == [FIRST, SECOND]
    assert read.between(2, 4, 0) == [SECOND] and read.between(4, 4, 0) == []
    for missing in ((0, 6, 0), (1, 4, 0), (0, 4, 1), (0, 3, 0)):
        assert read.between(*missing) == []


def test_adding_a_record_compares_it_with_no_other(tmp_path, monkeypatch):
    made = Releases(tmp_path / "releases.jsonl", write=True)
    monkeypatch.setattr(ReleaseRecord, "__eq__", lambda self, other: pytest.fail("compared"))
    for release in (FIRST, SECOND, SECOND):
        made.add(release)
    made.close()
    assert len((tmp_path / "releases.jsonl").read_text().splitlines()) == 2


def test_the_last_record_of_a_release_counts(tmp_path):
    """A record that was staged but never charged may be followed by the one that was charged."""
    made = Releases(tmp_path / "releases.jsonl", write=True)
    longer = dataclasses.replace(SECOND, stop=6)
    for release in (FIRST, SECOND, longer):
        made.add(release)
    made.close()
    assert made.between(0, 6, 0) == [FIRST, longer] and made.between(0, 4, 0) == [FIRST, SECOND]


def test_all_must_be_as_it_was():
    same = ([FIRST, SECOND], ["b0"], dict(FIRST.exactly), rows("r0", "r1", "r2", "r3"))
    assert differences(*same) == []
    assert differences([], *same[1:]) == ["there is no record of how they were computed"]
    assert differences(same[0], ["other"], *same[2:]) == [
        "the state that they started from differs"
    ]
    for exactly, said in (
        ({"mesh": "data=8"}, "mesh None -> data=8"),
        ({"program": "q" * 64}, "the program differs"),
    ):
        assert differences(*same[:2], same[2] | exactly, same[3]) == [said]
    other = rows("r0", "r1", "r2", "xx")
    assert differences(*same[:3], other) == ["the rows that they read differ"]


def test_a_difference_in_one_process_is_one_in_all(monkeypatch):
    """Or only some would take fresh noise, while the others wait for them to read the rows."""
    monkeypatch.setattr(releases, "any_process", lambda local: True)
    found = differences([FIRST], ["b0"], dict(FIRST.exactly), lambda *_: pytest.fail("read"))
    assert found == ["something differs in another process"]
    found = differences([], ["b0"], dict(FIRST.exactly), lambda *_: pytest.fail("read"))
    assert found == ["there is no record of how they were computed"]


def test_a_nested_difference_names_the_part():
    assert describe_change("versions", {"jax": 1, "numpy": 2}, {"jax": 3, "numpy": 2}) == (
        "versions.jax 1 -> 3"
    )
