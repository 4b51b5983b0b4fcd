"""A damaged record of a run folder: an error that names the file, or a right resumption."""

import shutil

import pytest
import training_runs as runs

from bevel.errors import BevelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*(Resuming from|cannot be read|lacks its line)"),
]
FILES = [
    "released/run.json",
    "released/metrics.jsonl",
    "released/ledger.jsonl",
    "released/checkpoints/4/checkpoint.json",
    "released/checkpoints/4/_METADATA",
    "private/run.json",
    "private/raw.jsonl",
    "private/releases.jsonl",
    "private/identity.json",
    "private/secrets.json",
    "private/ledger_head",
    "private/checkpoints/4/checkpoint.json",
    "private/staging/5/release.json",
    "private/damaged/stray",
]
CONTENTS = [
    b"",
    b"[]\n",
    b"null\n",
    b"{}\n",
    b'{"step": "x"}\n',
    b'{"step": 4, "attempt": "x"}\n',
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    folder = tmp_path_factory.mktemp("half") / "run"
    runs.fit(folder, callback=runs.at_step(4))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return runs.fit(tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_record_is_an_error_of_bevel_or_does_no_harm(
    name, content, half, whole, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    path = folder / name
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600 if "private" in name else 0o644)
    try:
        state = runs.fit(folder)
    except BevelError as error:
        assert path.name in str(error) and before is not None, error
        path.write_bytes(before)  # "restore it from a backup"
        state = runs.fit(folder)
    assert runs.same_bits(state, whole)


@pytest.mark.parametrize("name", ["²", "007", "x-1", "4", ".DS_Store"])
def test_stray_folders_do_no_harm(name, half, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    for place in ("private/damaged", "private/staging", "private/checkpoints"):
        (folder / place / name).mkdir(parents=True, exist_ok=True)
    (folder / "released" / "checkpoints" / f"{name} copy").mkdir()
    assert runs.same_bits(runs.fit(folder), whole)
