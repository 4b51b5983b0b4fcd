"""The two run.json files are written separately, and the released one has no time."""

import json
import stat

import pytest

from bevel.errors import RestoreCheckpointError
from bevel.training.folder import NO_TIME, RunFolder
from bevel.training.run_json import RunRecord


def test_each_record_is_in_its_half_and_is_read_again(tmp_path):
    folder = RunFolder(tmp_path)
    folder.create()
    record = RunRecord(folder)
    assert record.public == record.private == {}
    record.add_public(name="one", steps=3)
    record.add_public(steps=float("nan"))
    record.add_private(started="now")
    again = RunRecord(folder)
    assert again.public == {"name": "one", "steps": None} and again.private == {"started": "now"}
    released, private = folder.released / "run.json", folder.private / "run.json"
    assert released.stat().st_mtime == NO_TIME
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "now" not in json.loads(released.read_text()).values()
    private.write_text("{")
    with pytest.raises(RestoreCheckpointError, match="damaged"):
        RunRecord(folder)
