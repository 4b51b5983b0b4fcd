"""Files that are there whole or not at all."""

import os
import threading

import pytest

from bevel.accounting.ledger import durable_files
from bevel.accounting.ledger.durable_files import begin_file, replace_file, write_new
from bevel.errors import FixArgumentsError


@pytest.fixture
def calls(monkeypatch):
    """What was done to files, in order."""
    calls = []

    def recorded(name, real):
        monkeypatch.setattr(os, name, lambda *args: (calls.append(name), real(*args))[1])

    for name in ("write", "fsync", "link", "replace"):
        recorded(name, getattr(os, name))
    return calls


def test_a_file_is_begun_for_its_owner_and_once(tmp_path):
    assert begin_file(tmp_path / "f", b"first")
    assert not begin_file(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("content", [b"", b"\0", b"other"])
def test_a_file_that_is_there_is_left_as_it_is(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    os.utime(tmp_path / "f", ns=(1, 1))
    assert not begin_file(tmp_path / "f", b"first")
    assert (tmp_path / "f").read_bytes() == content
    assert (tmp_path / "f").stat().st_mtime_ns == 1


def test_its_bytes_are_on_disk_before_its_name(tmp_path, calls):
    begin_file(tmp_path / "f", b"first")
    assert calls == ["write", "fsync", "link", "fsync"]


def test_of_several_that_begin_at_once_one_does(tmp_path, monkeypatch):
    together, link = threading.Barrier(5, timeout=5), os.link
    monkeypatch.setattr(os, "link", lambda *a: (together.wait(), link(*a))[1])
    begun = []

    def begin(number):
        if begin_file(tmp_path / "f", b"%d" % number):
            begun.append(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(begun) == 1
    assert (tmp_path / "f").read_bytes() == b"%d" % begun[0]
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("where", ["write", "fsync", "link"])
def test_a_beginning_that_fails_leaves_nothing(tmp_path, monkeypatch, where):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, where, full)
        begin_file(tmp_path / "f", b"first")
    assert os.listdir(tmp_path) == []
    assert begin_file(tmp_path / "f", b"first")


def test_what_a_killed_process_left_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_files.secrets, "token_hex", lambda size: "left")
    (tmp_path / ".f.begin-other").write_bytes(b"fir")
    assert begin_file(tmp_path / "f", b"first")
    (tmp_path / "g.new").write_bytes(b"fir")
    replace_file(tmp_path / "g", b"second")
    assert sorted(os.listdir(tmp_path)) == [".f.begin-other", "f", "g"]


def test_file_systems_without_links_are_refused(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(FixArgumentsError, match="has no hard links"):
        begin_file(tmp_path / "f", b"first")
    assert os.listdir(tmp_path) == []


def test_a_file_is_begun_where_a_link_leads(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "f").symlink_to(tmp_path / "disk" / "f")
    assert begin_file(tmp_path / "f", b"first")
    assert (tmp_path / "disk" / "f").read_bytes() == b"first"
    (tmp_path / "g").symlink_to(tmp_path / "unmounted" / "g")
    with pytest.raises(FixArgumentsError, match="no such folder"):
        begin_file(tmp_path / "g", b"first")


def test_a_replaced_file_is_on_disk_before_it_takes_the_place(tmp_path, calls):
    for content in (b"first", b"second"):
        calls.clear()
        replace_file(tmp_path / "f", content)
        assert [call for call in calls if call != "unlink"] == [
            "write",
            "fsync",
            "replace",
            "fsync",
        ]
        assert (tmp_path / "f").read_bytes() == content
    assert os.listdir(tmp_path) == ["f"]


def test_a_new_file_replaces_none(tmp_path):
    write_new(tmp_path / "f", b"first", 0o400)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o400
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"


def test_writes_in_part_are_finished(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    write_new(tmp_path / "f", b"a long line\n")
    assert (tmp_path / "f").read_bytes() == b"a long line\n"
