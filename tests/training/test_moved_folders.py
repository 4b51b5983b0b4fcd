"""Files and folders that are removed, moved or replaced while a run uses them, or between runs."""

import json
import os
import shutil

import pytest
import training_runs as runs

from bevel.errors import FixStorageError, RestoreLedgerError
from bevel.training.metrics_files import read_lines

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return runs.fit(tmp_path_factory.mktemp("whole") / "run")


def once(work):
    """A callback that does something at step 2."""

    def callback(state, metrics):
        if metrics["step"] == 2:
            work()

    return callback


def check_complete(folder, state, whole):
    assert runs.same_bits(state, whole)
    steps = [line["step"] for line in read_lines(folder / "released" / "metrics.jsonl")]
    assert steps == [2, 4, 6, 8]
    raw = [line["step"] for line in read_lines(folder / "private" / "raw.jsonl")]
    assert raw == list(range(8))
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    entries = [json.loads(line)["entry"] for line in lines]
    charged = [(entry["first"], entry["stop"]) for entry in entries]
    assert charged == [(0, 2), (2, 4), (4, 6), (6, 8)]


@pytest.mark.parametrize(
    "name",
    [
        "released/metrics.jsonl",
        "private/raw.jsonl",
        "private/releases.jsonl",
        "private/secrets.json",
    ],
)
def test_a_file_that_is_removed_while_it_is_written_is_written_again(name, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.warns(UserWarning, match="was removed while a run.*written again"):
        state = runs.fit(folder, callback=once((folder / name).unlink))
    check_complete(folder, state, whole)
    if "private" in name:
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert runs.same_bits(runs.fit(folder), whole)


def test_a_ledger_that_is_removed_is_put_back(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RestoreLedgerError, match="content was put back: open it again"):
        runs.fit(folder, callback=once((folder / "released" / "ledger.jsonl").unlink))
    check_complete(folder, runs.fit(folder), whole)


@pytest.mark.parametrize("name", ["released/metrics.jsonl", "private/raw.jsonl"])
def test_a_file_that_is_replaced_is_an_error(name, whole, tmp_path):
    folder, aside = tmp_path / "run", tmp_path / "aside"

    def replace():
        (folder / name).rename(aside)
        shutil.copy(aside, folder / name)

    with pytest.raises(FixStorageError, match=f"{name.split('/')[1]} was moved, removed or repl"):
        runs.fit(folder, callback=once(replace))
    aside.replace(folder / name)
    check_complete(folder, runs.fit(folder), whole)


@pytest.mark.parametrize("what", ["the run", "the folder above it"])
def test_a_run_whose_folder_moves_stops_and_resumes_at_the_new_place(what, whole, tmp_path):
    folder = tmp_path / "above" / "run"
    place = folder if what == "the run" else folder.parent
    target = tmp_path / "moved"
    with pytest.raises(FixStorageError, match=r"moved, removed or replaced.*its new place"):
        runs.fit(folder, callback=once(lambda: place.rename(target)))
    assert not place.exists()  # nothing was created where it was
    new = target if what == "the run" else target / "run"
    check_complete(new, runs.fit(new), whole)


@pytest.mark.parametrize("name", ["", "private", "released"])
def test_a_run_whose_folder_is_removed_stops(name, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises((FixStorageError, RestoreLedgerError), match=r"removed|Put it back"):
        runs.fit(folder, callback=once(lambda: shutil.rmtree(folder / name)))
    assert os.path.exists(folder) == bool(name)


@pytest.mark.parametrize("name", ["private/staging", "released/checkpoints"])
def test_folders_of_checkpoints_that_are_removed_cost_nothing(name, whole, tmp_path):
    """What was published before is gone, but the run goes on from what is left."""
    folder = tmp_path / "run"
    error = None
    try:
        state = runs.fit(folder, callback=once(lambda: shutil.rmtree(folder / name)))
    except FixStorageError as raised:
        error = raised
        state = runs.fit(folder)
    assert error is None or name.split("/")[1] in str(error)
    check_complete(folder, state, whole)
