"""The secrets of a run are in one file that only its owner can read and that is never replaced."""

import os
import stat

import pytest

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import PlanSecrets
from bevel.training.secrets import check_commitment, read_secrets, write_secrets


def test_what_was_written_is_read_by_its_owner_only(tmp_path):
    path, secrets = tmp_path / "secrets.json", PlanSecrets.new()
    before = os.umask(0)
    try:
        write_secrets(path, secrets)
    finally:
        os.umask(before)
    assert read_secrets(path) == secrets
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secrets.json"]


def test_keys_of_a_run_are_never_replaced(tmp_path):
    path, secrets = tmp_path / "secrets.json", PlanSecrets.new()
    write_secrets(path, secrets)
    with pytest.raises(FixArgumentsError, match="never replaced"):
        write_secrets(path, PlanSecrets.new())
    assert read_secrets(path) == secrets and os.listdir(tmp_path) == ["secrets.json"]


def test_what_is_missing_damaged_or_open_to_others_is_refused(tmp_path):
    path = tmp_path / "secrets.json"
    with pytest.raises(RestoreCheckpointError, match="is missing"):
        read_secrets(path)
    secrets = PlanSecrets.new()
    write_secrets(path, secrets)
    path.chmod(0o640)
    with pytest.raises(RestoreCheckpointError, match=r"mode 0640.*chmod 600"):
        read_secrets(path)
    path.chmod(0o600)
    path.write_text(path.read_text()[:-3])
    with pytest.raises(RestoreCheckpointError, match="damaged") as damaged:
        read_secrets(path)
    assert secrets.root.hex()[:16] not in str(damaged.value)
    assert damaged.value.__cause__ is None and damaged.value.__suppress_context__


def test_other_secrets_are_told_apart_by_their_commitment():
    one, other = PlanSecrets.new(), PlanSecrets.new()
    check_commitment(one, one.commitment, "checkpoint 3")
    with pytest.raises(RestoreCheckpointError, match="checkpoint 3 was written with another noise"):
        check_commitment(other, one.commitment, "checkpoint 3")
