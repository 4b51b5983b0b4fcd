"""A file that the user named is written as a whole, or stays as it was."""

import errno
import os

import pytest

from bevel.errors import FixArgumentsError, FixStorageError, FreeSpaceError
from bevel.output_files import text_before, write_file


@pytest.fixture
def full_disk(monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_keeps_the_old_content_and_leaves_no_other_file(tmp_path, full_disk):
    path = tmp_path / "config.toml"
    path.write_text("[run]\n")
    with pytest.raises(FreeSpaceError, match=r"config\.toml could not be written"):
        write_file(path, b"[plan]\n")
    with pytest.raises(FreeSpaceError):
        write_file(tmp_path / "new.toml", b"[plan]\n")
    assert os.listdir(tmp_path) == ["config.toml"] and path.read_text() == "[run]\n"


def test_permissions_and_links_are_kept(tmp_path):
    path, link = tmp_path / "config.toml", tmp_path / "link.toml"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, b"new")
    assert link.is_symlink() and path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path):
    write_file(tmp_path / "new", b"")
    (tmp_path / "usual").write_bytes(b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_device_is_written_and_not_replaced(tmp_path):
    link = tmp_path / "nothing"
    link.symlink_to(os.devnull)
    write_file(link, b"text")
    assert link.is_char_device()


def test_what_is_changed_is_read(tmp_path):
    path = tmp_path / "config.toml"
    assert text_before(path) == ""
    path.write_bytes("é\r\n".encode())
    assert text_before(path) == "é\r\n"
    path.write_bytes(b"\xff")
    with pytest.raises(FixArgumentsError, match="is not UTF-8 text"):
        text_before(path)
    with pytest.raises(FixStorageError):
        text_before(tmp_path)
