"""Files that are written completely or not at all."""

import os
import threading

import pytest

from bevel.accounting.ledger import durable_files
from bevel.accounting.ledger.durable_files import create_file, replace_file, write_new
from bevel.errors import FixArgumentsError


@pytest.fixture
def calls(monkeypatch):
    """File operations, in order."""
    calls = []

    def recorded(name, real):
        monkeypatch.setattr(os, name, lambda *args: (calls.append(name), real(*args))[1])

    for name in ("write", "fsync", "link", "replace"):
        recorded(name, getattr(os, name))
    return calls


def test_a_file_is_created_once_and_only_its_owner_can_read_it(tmp_path):
    assert create_file(tmp_path / "f", b"first")
    assert not create_file(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("content", [b"", b"\0", b"other"])
def test_an_existing_file_is_not_changed(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    os.utime(tmp_path / "f", ns=(1, 1))
    assert not create_file(tmp_path / "f", b"first")
    assert (tmp_path / "f").read_bytes() == content
    assert (tmp_path / "f").stat().st_mtime_ns == 1


def test_the_bytes_are_on_disk_before_the_name(tmp_path, calls):
    create_file(tmp_path / "f", b"first")
    assert calls == ["write", "fsync", "link", "fsync"]


def test_of_several_concurrent_creations_one_succeeds(tmp_path, monkeypatch):
    together, link = threading.Barrier(5, timeout=5), os.link
    monkeypatch.setattr(os, "link", lambda *a: (together.wait(), link(*a))[1])
    begun = []

    def begin(number):
        if create_file(tmp_path / "f", b"%d" % number):
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
def test_a_failed_creation_leaves_nothing(tmp_path, monkeypatch, where):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, where, full)
        create_file(tmp_path / "f", b"first")
    assert os.listdir(tmp_path) == []
    assert create_file(tmp_path / "f", b"first")


def test_leftovers_of_a_killed_process_are_harmless(tmp_path, monkeypatch):
    monkeypatch.setattr(durable_files.secrets, "token_hex", lambda size: "left")
    (tmp_path / ".f.begin-other").write_bytes(b"fir")
    assert create_file(tmp_path / "f", b"first")
    (tmp_path / "g.new").write_bytes(b"fir")
    replace_file(tmp_path / "g", b"second")
    assert sorted(os.listdir(tmp_path)) == [".f.begin-other", "f", "g"]


def test_without_hard_links_a_file_is_created_and_never_replaced(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert create_file(tmp_path / "f", b"first")
    monkeypatch.setattr(type(tmp_path), "exists", lambda path: False)  # created at this moment
    assert not create_file(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["f"]


def test_a_file_is_created_at_the_target_of_a_symbolic_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "f").symlink_to(tmp_path / "disk" / "f")
    assert create_file(tmp_path / "f", b"first")
    assert (tmp_path / "disk" / "f").read_bytes() == b"first"
    (tmp_path / "g").symlink_to(tmp_path / "unmounted" / "g")
    with pytest.raises(FixArgumentsError, match="does not exist"):
        create_file(tmp_path / "g", b"first")


def test_new_content_is_on_disk_before_it_replaces_the_old(tmp_path, calls):
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


def test_write_new_never_replaces_a_file(tmp_path):
    write_new(tmp_path / "f", b"first", 0o400)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o400
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "f", b"second")
    assert (tmp_path / "f").read_bytes() == b"first"


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    write_new(tmp_path / "f", b"a long line\n")
    assert (tmp_path / "f").read_bytes() == b"a long line\n"
