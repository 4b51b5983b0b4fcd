"""The two halves of a run folder: only the owner can read the private one, whatever the umask."""

import os
import stat

import pytest

from bevel.errors import FixArgumentsError, FixStorageError
from bevel.training.folder import (
    NO_TIME,
    RunFolder,
    make_private_folder,
    open_private,
    write_atomically,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_to_all():
    before = os.umask(0)
    yield
    os.umask(before)


def test_both_halves_are_created_and_one_is_private(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    folder.create()
    folder.create()
    assert mode(folder.private) == 0o700 and mode(folder.released) == 0o777


def test_a_folder_that_was_open_is_closed_with_a_warning(tmp_path):
    path = tmp_path / "private"
    path.mkdir(mode=0o750)
    with pytest.warns(UserWarning, match=r"had mode 0750.*now has mode 0700.*start a new run"):
        make_private_folder(path)
    assert mode(path) == 0o700


def test_a_file_or_a_link_is_not_a_private_folder(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for name, said in (("file", "is not a folder"), ("link", "is a symbolic link")):
        with pytest.raises(FixArgumentsError, match=said):
            make_private_folder(tmp_path / name)


def test_private_files_are_closed_and_links_are_not_followed(tmp_path):
    path, link = tmp_path / "raw", tmp_path / "link"
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    assert mode(path) == 0o600
    path.chmod(0o666)
    with pytest.warns(UserWarning, match="had mode 0666; it now has mode 0600"):
        os.close(open_private(path, os.O_WRONLY))
    assert mode(path) == 0o600
    link.symlink_to(path)
    with pytest.raises(FixArgumentsError, match="is a symbolic link"):
        open_private(link, os.O_WRONLY)
    with pytest.raises(FixStorageError):
        open_private(tmp_path / "none", os.O_WRONLY)


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, "one", private=False)
    write_atomically(path, "two", private=True)
    assert path.read_text() == "two" and mode(path) == 0o600
    assert os.listdir(tmp_path) == ["run.json"]
    with pytest.raises(AttributeError):
        write_atomically(path, 3, private=True)
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["run.json"]


def test_released_files_have_a_fixed_time(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    (folder.released / "run.json").touch()
    folder.reset_times()
    assert folder.released.stat().st_mtime == NO_TIME
    assert (folder.released / "run.json").stat().st_mtime == NO_TIME


def test_another_process_may_write_a_report_while_times_are_set(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.create()
    (folder.released / "run.json").touch()
    temporary, set_times = folder.released / ".report.html.5", os.utime

    def replaced_first(path, *args, **kwargs):
        if path == temporary:
            temporary.rename(folder.released / "report.html")
        set_times(path, *args, **kwargs)

    temporary.touch()
    monkeypatch.setattr(os, "utime", replaced_first)
    folder.reset_times()
    assert (folder.released / "run.json").stat().st_mtime == NO_TIME


def test_what_a_killed_process_left_is_removed_from_the_released_half(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    left = ".run.json.123", ".report.html.5", ".ledger.jsonl.begin-a", "ledger.jsonl.torn-1"
    for name in (*left, "run.json", "ledger.jsonl"):
        (folder.released / name).write_text(name)
    (folder.private / "ledger.jsonl.torn-1").write_text("an earlier one")
    folder.remove_leftovers()
    assert sorted(os.listdir(folder.released)) == ["ledger.jsonl", "run.json"]
    kept = [(folder.private / f"ledger.jsonl.torn-{k}").read_text() for k in (1, 2)]
    assert kept == ["an earlier one", "ledger.jsonl.torn-1"]


@pytest.mark.parametrize("name", ["run.json", "secrets.json", "checkpoints"])
def test_an_older_folder_is_refused_and_left_as_it_is(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(FixArgumentsError, match=r"contain the noise.*RunOptions\(ledger="):
        RunFolder(tmp_path).create()
    assert os.listdir(tmp_path) == [name]


def test_a_folder_whose_name_is_not_in_utf_8_is_refused(tmp_path):
    with pytest.raises(FixArgumentsError, match="is not in UTF-8"):
        RunFolder(tmp_path / "\udcff").open()
    path = tmp_path / "page.html"
    write_atomically(path, "the run '\udcff'", private=False)
    assert path.read_text() == r"the run '\udcff'"
