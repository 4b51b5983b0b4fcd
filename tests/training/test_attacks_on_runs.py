"""Attacks on whole runs: folders restored from backups, other data, other processes, open files."""

import json
import os
import shutil
import signal
import stat
import warnings
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import optax
import pytest
import simulator
import training_runs as runs
from two_processes import started

from bevel.accounting import Budget, Ledger
from bevel.errors import (
    FixArgumentsError,
    RestoreCheckpointError,
    RestoreLedgerError,
    StopRunError,
)
from bevel.execution_plan import PlanSecrets
from bevel.optimizers import dp_adam
from bevel.sharding import make_mesh
from bevel.training import RunInterrupted, RunOptions, data
from bevel.training.checkpoint import digest_of
from bevel.training.folder_run import FolderRun

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def charges(ledger):
    lines = Path(ledger).read_text().splitlines()[1:]
    entries = [json.loads(line)["entry"] for line in lines]
    return [(e["first"], e["stop"], e["attempt"]) for e in entries if e["kind"] == "charge"]


def put_back_copy(copy, folder):
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def correlated(config):
    return runs.trainer(config=config.make(secrets=PlanSecrets.for_tests(3)))


@pytest.fixture
def put_back(tmp_path):
    """A run of 8 steps with an external ledger, whose folder is then rolled back to step 4."""

    def roll_back(of=None):
        folder, ledger = tmp_path / "run", tmp_path / "ledger.jsonl"
        options = runs.options(ledger=ledger)
        runs.fit(folder, of=of, options=options, callback=runs.at_step(4))
        shutil.copytree(folder, tmp_path / "copy")
        state = runs.fit(folder, of=of, options=options)
        put_back_copy(tmp_path / "copy", folder)
        return folder, ledger, options, state

    return roll_back


def test_charged_steps_of_a_restored_folder_get_fresh_noise_and_a_new_charge(put_back):
    folder, ledger, options, first = put_back()
    with pytest.warns(UserWarning, match=r"steps 4 to 8 were released.*no record.*charged again"):
        again = runs.fit(folder, options=options)
    assert charges(ledger)[-4:] == [(4, 6, 0), (6, 8, 0), (4, 6, 1), (6, 8, 1)]
    assert np.abs(np.asarray(again.params["w"]) - np.asarray(first.params["w"])).max() > 1e-3


@pytest.mark.full
def test_a_record_changed_in_a_folder_put_back_is_refused(put_back):
    folder, ledger, options, _ = put_back()
    before, changed = ledger.read_bytes(), runs.data()
    changed["x"][5] += 5
    with pytest.raises(RestoreCheckpointError, match="the data differ"):
        runs.fit(folder, options=options, given=changed)
    assert ledger.read_bytes() == before


@pytest.mark.full
@pytest.mark.parametrize("config", [runs.BANDMF, runs.BLT], ids=["BandMF", "BLT"])
def test_correlated_noise_is_not_repeated_after_a_folder_is_restored(put_back, config):
    folder, ledger, options, _ = put_back(correlated(config))
    before = ledger.read_bytes()
    with pytest.raises(RestoreCheckpointError, match="no guarantee is proven"):
        runs.fit(folder, of=correlated(config), options=options)
    assert ledger.read_bytes() == before


@pytest.mark.full
@pytest.mark.parametrize("config", [runs.BANDMF, runs.BLT], ids=["BandMF", "BLT"])
def test_correlated_noise_goes_on_where_charges_reached_ahead(config, tmp_path):
    unbroken = runs.fit(tmp_path / "unbroken", of=correlated(config))
    folder = tmp_path / "run"
    runs.fit(folder, of=correlated(config), callback=runs.at_step(4))
    again = runs.fit(folder, of=correlated(config))
    assert runs.same_bits(unbroken, again)
    spent = [
        Ledger.read(f / "released" / "ledger.jsonl").spent(1e-5).epsilon
        for f in (tmp_path / "unbroken", folder)
    ]
    assert spent[0] == spent[1]


def lose_the_last_checkpoint(folder):
    """Removes both halves of the last checkpoint and nothing else."""
    for half in ("released", "private"):
        steps = sorted(map(int, os.listdir(folder / half / "checkpoints")))
        shutil.rmtree(folder / half / "checkpoints" / str(steps[-1]))


def test_lost_checkpoints_are_run_again_to_the_same_bits_at_no_cost(tmp_path):
    folder = tmp_path / "run"
    state = runs.fit(folder)
    before = charges(folder / "released" / "ledger.jsonl")
    for _ in range(2):
        lose_the_last_checkpoint(folder)
    assert runs.same_bits(runs.fit(folder), state)
    assert charges(folder / "released" / "ledger.jsonl") == before


def test_a_record_that_no_fingerprint_sampled_is_found_by_the_digests_of_rows(
    tmp_path, monkeypatch
):
    # As for a very large data set, of which the fingerprint covers a small sample.
    monkeypatch.setattr(data, "indices_to_hash", lambda *_: iter(()))
    folder, of = tmp_path / "run", runs.trainer()
    runs.fit(folder, of=of)
    lose_the_last_checkpoint(folder)
    row = of.plan.batch(7, runs.N)[0]  # in a batch of the steps that are run again
    changed = runs.data()
    changed["x"][row] += 5
    with pytest.warns(UserWarning, match=r"rows that they read differ.*charged again"):
        runs.fit(folder, of=of, given=changed)
    assert charges(folder / "released" / "ledger.jsonl")[-1] == (6, 8, 1)


def test_a_result_that_is_not_the_recorded_one_is_not_shown(tmp_path, monkeypatch):
    folder, of = tmp_path / "run", runs.trainer()
    runs.fit(folder, of=of)
    lose_the_last_checkpoint(folder)
    first = iter([True])

    def different_once(halves):  # as if the machine did not reproduce the same bits
        found = digest_of(halves)
        return ["0" * 16, *found[1:]] if next(first, False) else found

    monkeypatch.setattr("bevel.training.releaser.digest_of", different_once)
    with pytest.warns(UserWarning, match="running them again gave another result"):
        state = runs.fit(folder, of=of)
    assert int(state.step) == 8
    assert charges(folder / "released" / "ledger.jsonl")[-1] == (6, 8, 1)


def other_loss():
    return runs.trainer(loss_fn=scaled), runs.options(accept=["loss"])


@pytest.mark.full
def test_a_staged_state_of_another_program_is_not_published_in_place_of_what_was_charged(
    tmp_path, monkeypatch
):
    """Only the staging folder is rolled back: its noise was used by steps released meanwhile."""
    folder = tmp_path / "run"
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    shutil.copytree(folder / "private" / "staging", tmp_path / "staging")
    of, options = other_loss()
    state = runs.fit(folder, of=of, options=options)
    shown = simulator.files_of(folder / "released" / "checkpoints")
    put_back_copy(tmp_path / "staging", folder / "private" / "staging")
    assert runs.same_bits(runs.fit(folder, of=of), state)
    assert simulator.files_of(folder / "released" / "checkpoints") == shown


@pytest.mark.full
@pytest.mark.parametrize("moment", ["interrupted", "staged"])
def test_two_copies_of_a_folder_do_not_share_a_charge(moment, tmp_path, monkeypatch):
    """Both copies have the same noise, so neither may publish what the other was charged for."""
    ledger = tmp_path / "ledger.jsonl"
    options = runs.options(ledger=ledger)
    runs.fit(tmp_path / "one" / "run", options=options, callback=runs.at_step(4))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with monkeypatch.context() as patch:
        if moment == "interrupted":
            interrupting(patch, 5)
        else:  # killed after the checkpoint was staged and recorded, before it was charged
            cut = mock.Mock(side_effect=KeyboardInterrupt("power cut"))
            patch.setattr("bevel.training.run_ledger.RunLedger.release", cut)
        with pytest.raises(KeyboardInterrupt):
            runs.fit(tmp_path / "one" / "run", options=options)
    accepted = runs.options(ledger=ledger, accept=["loss"])
    other = runs.fit(tmp_path / "two" / "run", of=runs.trainer(loss_fn=scaled), options=accepted)
    with pytest.warns(UserWarning, match=r"were released before.*charged again"):
        state = runs.fit(tmp_path / "one" / "run", options=options)
    assert not runs.same_bits(state.params, other.params)
    assert charges(ledger)[-2:] == [(4, 6, 1), (6, 8, 1)]


def test_a_released_folder_that_is_rolled_back_alone_is_detected(tmp_path):
    """The released half contains the ledger by default."""
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    shutil.copytree(folder / "released", tmp_path / "released")
    runs.fit(folder)
    put_back_copy(tmp_path / "released", folder / "released")
    with pytest.raises(RestoreLedgerError, match="lines are missing"):
        runs.fit(folder)
    shutil.rmtree(folder / "released")
    with pytest.raises(RestoreLedgerError, match="is missing"):
        runs.fit(folder)
    assert not (folder / "released" / "ledger.jsonl").exists()


@pytest.mark.full
def test_a_ledger_without_the_attempt_of_a_checkpoint_is_refused(put_back):
    folder, ledger, options, _ = put_back()
    before = ledger.read_bytes()
    with pytest.warns(UserWarning, match="charged again"):
        runs.fit(folder, options=options, callback=runs.at_step(6))
    ledger.write_bytes(before)
    with pytest.raises(RestoreLedgerError):
        runs.fit(folder, options=options)
    (folder / "private" / "ledger_head").unlink()
    with pytest.raises(RestoreLedgerError, match="of attempt 1"):
        runs.fit(folder, options=options)


def test_private_checkpoints_detect_a_rolled_back_released_folder(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    shutil.copytree(folder / "released", tmp_path / "released")
    runs.fit(folder)
    put_back_copy(tmp_path / "released", folder / "released")
    (folder / "private" / "ledger_head").unlink()
    with pytest.raises(RestoreLedgerError, match="checkpoint"):
        runs.fit(folder)


def test_released_files_carry_no_time_however_a_call_ends(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    interrupting(monkeypatch, 1)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    times = {"interrupted": simulator.files_of(folder / "released")}
    with pytest.raises(FixArgumentsError, match="evaluate returned a int"):
        runs.fit(folder, evaluate=lambda params: 3)
    times["failed"] = simulator.files_of(folder / "released")
    runs.fit(folder)
    runs.fit(folder)
    times["finished"] = simulator.files_of(folder / "released")
    with pytest.raises(RestoreCheckpointError):
        runs.fit(folder, of=runs.trainer(loss_fn=scaled))
    times["refused"] = simulator.files_of(folder / "released")
    for moment, files in times.items():
        assert {modified for _, modified in files.values()} == {315_532_800}, moment


def test_a_change_is_recorded_at_the_last_checkpoint_and_not_where_it_was_made(
    tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    of, options = other_loss()
    runs.fit(folder, of=of, options=options)
    record = json.loads((folder / "released" / "run.json").read_text())
    assert [(c["step"], c["name"]) for c in record["changes"]] == [(4, "loss")]


def test_a_known_key_stays_known(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    runs.fit(folder, of=runs.trainer(config=runs.config()))
    assert json.loads((folder / "released" / "run.json").read_text())["key_is_secret"] is False


def test_ctrl_c_in_the_last_step_ends_a_complete_run(tmp_path, monkeypatch):
    interrupting(monkeypatch, 8)
    assert int(runs.fit(tmp_path / "run").step) == 8
    record = json.loads((tmp_path / "run" / "released" / "run.json").read_text())
    assert record["ending"] == "complete"


@pytest.mark.parametrize(
    "path, text",
    [
        ("private/releases.jsonl", "{}\n"),
        ("private/releases.jsonl", "garbage\n"),
        ("private/raw.jsonl", "[1]\n"),
        ("private/raw.jsonl", "{}\n"),
        ("released/metrics.jsonl", "garbage\n"),
        ("released/run.json", "[]"),
        ("private/run.json", "3"),
        ("private/identity.json", '{"settings": null, "digests": {}, "surroundings": {}}'),
        ("private/secrets.json", "{}"),
        ("private/ledger_head", ""),
        ("private/checkpoints/4/checkpoint.json", "[]"),
    ],
)
def test_damaged_files_are_named(path, text, tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    (folder / path).write_text(text)
    if "checkpoint.json" in path:
        with pytest.warns(UserWarning, match="Resuming from step 2"):
            runs.fit(folder)
        return
    with pytest.raises(RestoreCheckpointError, match=f"{Path(path).name}.* is damaged"):
        runs.fit(folder)


@pytest.mark.full
@pytest.mark.parametrize("text", ["[]", "{}", "3", '{"rows": 5}'])
def test_a_staged_state_with_a_damaged_record_is_not_used(text, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    (folder / "private" / "staging" / "5" / "release.json").write_text(text)
    assert int(runs.fit(folder).step) == 8


def test_strange_files_do_no_harm(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    (folder / "private" / "damaged").mkdir(mode=0o700)
    for place in ("private/staging", "private/damaged", "private", "released/checkpoints"):
        (folder / place / ".DS_Store").write_text("x")
    assert int(runs.fit(folder).step) == 8


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"evaluate": 5}, "evaluate=5"),
        ({"callback": "x"}, "callback='x'"),
        ({"options": {"keep": 3}}, "options is a dict"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(changed, said, tmp_path):
    with pytest.raises(FixArgumentsError, match=said):
        runs.fit(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.parametrize("value", [b"x", {1}, object()])
def test_metrics_that_are_not_json_are_named(value, tmp_path):
    with pytest.raises(FixArgumentsError, match="cannot be written as JSON"):
        runs.fit(tmp_path / "run", evaluate=lambda params: {"x": value})


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(FixArgumentsError, match="is a file"):
        runs.fit(tmp_path / "run")
    with pytest.raises(FixArgumentsError, match="is a folder"):
        runs.fit(tmp_path / "other", options=runs.options(ledger=tmp_path))


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"of": lambda: runs.trainer(optimizer=optax.sgd(0.4, momentum=0.9))}, "the optimizer's"),
        ({"of": lambda: runs.trainer(optimizer=optax.sgd(0.5))}, "another optimizer"),
        (
            {"of": lambda: runs.trainer(optimizer=lambda plan: dp_adam(0.1, noise_stddev=1.0))},
            "started with another optimizer, whose state has another structure",
        ),
        ({"of": lambda: runs.trainer(loss_fn=lambda *a: scaled(*a))}, "the loss's program differs"),
        ({"of": lambda: runs.trainer(ema_decay=0.5)}, "ema_decay None -> 0.5"),
        ({"options": lambda: runs.options(settings={"rate": 1, "device": "x"})}, "device None"),
        ({"of": lambda: runs.trainer(trainable="w")}, "shapes or dtypes of the trained"),
        ({"of": lambda: runs.trainer(config=runs.plan(noise_multiplier=2.0))}, "1.0 -> 2.0"),
        ({"of": lambda: runs.trainer(config=runs.plan(iterations=9))}, "iterations 8 -> 9"),
        ({"begin": lambda: jax.tree.map(lambda x: x + 1, runs.params())}, "initial parameters"),
        ({"given": lambda: {**runs.data(), "y": 1 - runs.data()["y"]}}, "the data differ"),
        ({"options": lambda: runs.options(settings={"rate": 2})}, "rate 1 -> 2"),
    ],
)
def test_a_run_resumes_only_with_the_same_inputs(changed, said, tmp_path):
    folder = tmp_path / "run"
    known = {"options": runs.options(settings={"rate": 1})}
    runs.fit(folder, callback=runs.at_step(4), **known)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(RestoreCheckpointError, match=said):
        runs.fit(folder, **known | {name: make() for name, make in changed.items()})
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    runs.fit(folder, **known)  # nothing was lost, and a finished run is compared too
    with pytest.raises(RestoreCheckpointError, match=said):
        runs.fit(folder, **known | {name: make() for name, make in changed.items()})


def scaled(params, batch, prng):
    loss, aux = runs.loss(params, batch, prng)
    return loss * 2.0, aux


def with_rule(scale):
    """The loss of `runs` with a custom derivative rule for its weights."""

    @jax.custom_vjp
    def same(x):
        return x

    same.defvjp(lambda x: (x, None), lambda _, g: (g * scale,))

    def loss(params, batch, prng):
        return runs.loss({**params, "w": same(params["w"])}, batch, prng)

    return loss


@pytest.mark.full
def test_another_rule_of_a_custom_derivative_is_seen(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, of=runs.trainer(loss_fn=with_rule(1.0)), callback=runs.at_step(4))
    with pytest.raises(RestoreCheckpointError, match="custom derivative rule of the loss differs"):
        runs.fit(folder, of=runs.trainer(loss_fn=with_rule(0.5)))
    runs.fit(folder, of=runs.trainer(loss_fn=with_rule(1.0)))


def test_two_ledgers_do_not_make_two_runs_of_one_folder(tmp_path):
    folder = tmp_path / "run"
    held = FolderRun(folder, runs.plan(), runs.options(ledger=tmp_path / "one.jsonl"))
    with held, pytest.raises(FixArgumentsError, match="in use by another run"):
        runs.fit(folder, options=runs.options(ledger=tmp_path / "two.jsonl"))
    assert int(runs.fit(folder, options=runs.options(ledger=tmp_path / "two.jsonl")).step) == 8
    with pytest.raises(RestoreLedgerError, match="lines are missing"):
        runs.fit(folder, options=runs.options(ledger=tmp_path / "one.jsonl"))


def test_trainers_of_one_plan_do_not_use_its_noise_twice():
    plan = runs.config().make()
    runs.fit(of=runs.trainer(config=plan))
    with pytest.raises(FixArgumentsError, match="the same noise again"):
        runs.fit(of=runs.trainer(config=plan))


@pytest.mark.full
def test_a_learning_rate_that_an_optimizer_keeps_in_its_state_is_seen(tmp_path):
    def of(rate):
        return runs.trainer(optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=rate))

    with jax.numpy_dtype_promotion("standard"):
        runs.fit(tmp_path / "run", of=of(0.5), callback=runs.at_step(4))
        with pytest.raises(RestoreCheckpointError, match="the optimizer's program differs"):
            runs.fit(tmp_path / "run", of=of(0.25))


@pytest.mark.full
def test_settings_do_not_hide_what_the_run_itself_says(tmp_path):
    folder = tmp_path / "run"
    settings = {"ema_decay": 1, "x": float("nan"), "plan": {"mechanism": {"noise_multiplier": 9}}}
    options = runs.options(settings=settings)
    runs.fit(folder, of=runs.trainer(ema_decay=0.9), options=options, callback=runs.at_step(4))
    record = json.loads((folder / "released" / "run.json").read_text())
    assert record["settings"]["plan.mechanism.noise_multiplier"] == 1.0
    with pytest.raises(RestoreCheckpointError, match=r"ema_decay 0.9 -> 0.5"):
        runs.fit(folder, of=runs.trainer(ema_decay=0.5), options=options)
    runs.fit(folder, of=runs.trainer(ema_decay=0.9), options=options)


def test_what_is_accepted_is_recorded_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4), options=runs.options(settings={"rate": 0.5}))
    slower = runs.trainer(optimizer=optax.sgd(0.4, momentum=0.9), loss_fn=scaled)
    accept = {"accept": ["optimizer", "loss", "rate"], "settings": {"rate": 0.4}}
    state = runs.fit(folder, of=slower, options=runs.options(**accept))
    assert int(state.step) == 8
    record = json.loads((folder / "released" / "run.json").read_text())
    assert [(c["step"], c["name"]) for c in record["changes"]] == [
        (4, "rate"),
        (4, "optimizer"),
        (4, "loss"),
    ]
    assert record["changes"][0]["from"] == 0.5 and record["changes"][0]["to"] == 0.4
    assert record["settings"]["rate"] == 0.4
    runs.fit(folder, of=slower, options=runs.options(settings={"rate": 0.4}))  # accepted before


def test_ctrl_c_without_a_folder_keeps_the_state_in_the_exception():
    of = runs.trainer()

    def press(state, metrics):
        if metrics["step"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunInterrupted, match=r"nothing is saved.*error\.state") as stopped:
        runs.fit(of=of, callback=press)
    again = runs.fit(of=of, begin=stopped.value.state)
    assert runs.same_bits(again, runs.fit())


def test_callbacks_receive_only_the_released_state(tmp_path):
    for folder in (None, tmp_path / "run"):
        seen = []
        runs.fit(
            folder, of=correlated(runs.BANDMF), callback=lambda s, m, seen=seen: seen.append(s)
        )
        assert {type(state).__name__ for state in seen} == {"ReleasedState"}
        assert not hasattr(seen[0], "noise_state") and int(seen[-1].step) == 8


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_can_access_private_files(umask, tmp_path):
    folder, before = tmp_path / "run", os.umask(umask)
    try:
        runs.fit(folder, options=runs.options(tensorboard=True), callback=runs.at_step(4))
    finally:
        os.umask(before)
    private = folder / "private"
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in private.iterdir()}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    (private / "raw.jsonl").chmod(0o644)
    private.chmod(0o755)
    with pytest.warns(UserWarning) as said:
        runs.fit(folder)
    found = " ".join(str(warning.message) for warning in said)
    assert "private had mode 0755" in found and "raw.jsonl had mode 0644" in found
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "raw.jsonl").stat().st_mode) == 0o600


def test_links_are_not_followed_out_of_the_private_half(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    raw = folder / "private" / "raw.jsonl"
    raw.rename(tmp_path / "elsewhere")
    raw.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FixArgumentsError, match="is a symbolic link"):
        runs.fit(folder)
    raw.unlink()
    secrets = folder / "private" / "secrets.json"
    secrets.rename(tmp_path / "secrets.json")
    secrets.symlink_to(tmp_path / "secrets.json")
    with pytest.raises(RestoreCheckpointError, match="is a symbolic link"):
        runs.fit(folder)
    (folder / "released").rename(tmp_path / "released")
    (folder / "released").symlink_to(tmp_path / "released")
    with pytest.raises(FixArgumentsError, match="released is a symbolic link"):
        runs.fit(folder)
    (folder / "private").rename(tmp_path / "private")
    (folder / "private").symlink_to(tmp_path / "private")
    (folder / "released").unlink()
    with pytest.raises(FixArgumentsError, match="private is a symbolic link"):
        runs.fit(folder)


def test_an_older_folder_says_what_to_do_and_its_ledger_goes_on(tmp_path):
    older = tmp_path / "older"
    older.mkdir()
    (older / "checkpoints").mkdir()
    (older / "run.json").write_text("{}")
    with pytest.raises(FixArgumentsError, match=r"contain the noise.*ledger\.jsonl"):
        runs.fit(older)
    assert sorted(os.listdir(older)) == ["checkpoints", "run.json"]


@pytest.mark.full
@pytest.mark.parametrize(
    "wrong",
    [{"delta": 1.5}, {"delta": 0.0}, {"keep_period": 0}, {"budget": 3}, {"accept": "loss"}],
)
def test_options_are_checked_before_anything_runs(wrong):
    with pytest.raises(FixArgumentsError):
        RunOptions(**wrong)


def test_evaluation_cannot_overwrite_what_the_run_says(tmp_path):
    with pytest.raises(FixArgumentsError, match="evaluate returned epsilon"):
        runs.fit(tmp_path / "run", evaluate=lambda params: {"epsilon": 0.0})


def test_a_ledger_rolled_back_with_its_folder_is_found_by_its_anchor(tmp_path):
    folder, options = tmp_path / "run", runs.options(anchor=tmp_path / "anchor")
    runs.fit(folder, options=options, callback=runs.at_step(4))
    shutil.copytree(folder, tmp_path / "copy")
    runs.fit(folder, options=options)
    put_back_copy(tmp_path / "copy", folder)
    with pytest.raises(ValueError, match="rolled back"):
        runs.fit(folder, options=options)


DIFFERENT = """
import sys, pathlib
import numpy as np, optax
import training_runs as runs
from bevel.execution_plan import PlanSecrets
from bevel.sharding import make_mesh

folder, what = sys.argv[3:]
odd = jax.process_index() == 1
fields, given = {}, runs.data()
if what == "plan" and odd:
    fields["config"] = runs.plan(noise_multiplier=0.1)
if what == "optimizer" and odd:
    fields["optimizer"] = optax.sgd(0.4, momentum=0.9)
if what == "loss" and odd:
    fields["loss_fn"] = lambda p, b, k: (2.0 * runs.loss(p, b, k)[0], {})
if what == "data" and odd:
    given["x"][3] += 1
begin = runs.params()
if what == "initial parameters" and odd:
    begin["b"] = begin["b"] + 1
options = runs.options(checkpoint_every=3 if what == "options" and odd else 2)
trainer = runs.trainer(mesh=make_mesh("data=4,model=2"), rules="fsdp", **fields)
try:
    runs.fit(folder, of=trainer, given=given, begin=begin, options=options)
except ValueError as error:
    print(error)
    sys.exit(0)
sys.exit(3)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "what", ["plan", "optimizer", "loss", "data", "initial parameters", "options"]
)
def test_all_processes_stop_if_they_differ(what, tmp_path):
    folder = tmp_path / "run"
    codes, outputs = started(DIFFERENT, folder, what)
    for code, output in zip(codes, outputs, strict=True):
        assert code == 0, output[-3000:]
        assert f"process 1 differs in {what}" in output
    assert not list(folder.rglob("checkpoints/*")), "nothing was released"


UNREADABLE = """
import os, sys, threading
import training_runs as runs
from bevel.sharding import make_mesh

class Failing:
    columns = runs.data()
    reads = 0
    def __len__(self):
        return runs.N
    def __getitem__(self, number):
        Failing.reads += 1
        if jax.process_index() == 1 and Failing.reads > runs.N + 30:  # after it was fingerprinted
            raise OSError("bad sector")
        return jax.tree.map(lambda x: x[number], self.columns)

if jax.process_index() == 0:  # it waits in a step, until the runtime finds the other one gone
    threading.Timer(60, os._exit, [0]).start()
trainer = runs.trainer(mesh=make_mesh("data=8"))
try:
    runs.fit(sys.argv[3], of=trainer, given=Failing(), options=runs.options(checkpoint_every=8))
except ValueError as error:
    print(error, flush=True)
    os._exit(5)
"""


@pytest.mark.full
def test_a_record_that_one_of_two_processes_cannot_read_is_said_at_once(tmp_path):
    codes, outputs = started(UNREADABLE, tmp_path / "run", seconds=150)
    assert codes[1] == 5 and "bad sector" in outputs[1], outputs[1][-2000:]


@pytest.mark.full
def test_a_budget_is_still_one_after_a_folder_was_put_back(tmp_path):
    """Steps that are run again are charged again, so the budget stops the run."""
    plan = runs.plan()
    budget = Budget(plan.epsilon(8, delta=1e-5) * 1.05, 1e-5)
    folder = tmp_path / "run"
    options = runs.options(ledger=tmp_path / "ledger.jsonl", budget=budget)
    runs.fit(folder, options=options, callback=runs.at_step(4))
    shutil.copytree(folder, tmp_path / "copy")
    runs.fit(folder, options=options)
    put_back_copy(tmp_path / "copy", folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = runs.fit(folder, options=options)
    assert int(state.step) < 8
    assert Ledger.read(tmp_path / "ledger.jsonl").spent().epsilon <= budget.epsilon


def interrupting(monkeypatch, *stops):
    """Presses Ctrl-C once after each of these steps. Returns a list that records all steps."""
    left, taken = list(stops), []

    def advance(self, step):
        taken.append(step)
        if left and step == left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("bevel.training.progress.Progress.advance", advance)
    return taken


@pytest.mark.full
@pytest.mark.parametrize("config", [runs.config(), runs.BANDMF], ids=["DP-SGD", "BandMF"])
def test_releases_do_not_reveal_interruptions(config, tmp_path, monkeypatch):
    unbroken, folder = tmp_path / "unbroken" / "run", tmp_path / "run"
    expected = runs.fit(unbroken, of=correlated(config))
    taken = interrupting(monkeypatch, 1, 5, 6)
    for step in (1, 5, 6):
        with pytest.raises(RunInterrupted, match=f"after {step} of 8 steps; the state is saved"):
            runs.fit(folder, of=correlated(config))
        shown = os.listdir(folder / "released" / "checkpoints")
        assert max(map(int, shown)) == step // 2 * 2  # there is a checkpoint every two steps
    assert runs.same_bits(runs.fit(folder, of=correlated(config)), expected)
    assert taken == list(range(1, 9))  # no step was taken twice
    assert simulator.files_of(folder / "released") == simulator.files_of(unbroken / "released")


@pytest.mark.full
def test_an_interrupted_run_goes_on_on_another_mesh(tmp_path, monkeypatch):
    expected, folder = runs.fit(), tmp_path / "run"
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    state = runs.fit(folder, of=runs.trainer(mesh=make_mesh("data=8")))
    np.testing.assert_allclose(state.params["w"], expected.params["w"], atol=1e-6)
    assert charges(folder / "released" / "ledger.jsonl")[-1] == (6, 8, 0)


def test_an_interrupted_run_is_released_where_it_would_have_been(tmp_path, monkeypatch):
    """Even if it was killed after staging a checkpoint, or now has more frequent checkpoints."""
    folder = tmp_path / "run"
    charge = mock.Mock(side_effect=RuntimeError("power cut"))
    with monkeypatch.context() as patch:
        patch.setattr("bevel.training.run_ledger.RunLedger.release", charge)
        with pytest.raises(RuntimeError, match="power cut"):
            runs.fit(folder, options=runs.options(checkpoint_every=4), evaluate=lambda params: {})
    assert os.listdir(folder / "private" / "staging") == ["4"]
    taken = interrupting(monkeypatch)
    runs.fit(folder, options=runs.options(checkpoint_every=3))
    assert taken == [5, 6, 7, 8]
    assert [stop for _, stop, _ in charges(folder / "released" / "ledger.jsonl")] == [6, 8]


def test_steps_that_were_taken_are_not_shown_if_the_budget_is_gone(tmp_path, monkeypatch):
    plan = runs.plan()
    budget = Budget(plan.epsilon(8, delta=1e-5) * 1.001, 1e-5)
    options = runs.options(checkpoint_every=8, ledger=tmp_path / "all.jsonl", budget=budget)
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(tmp_path / "run", options=options)
    runs.fit(tmp_path / "other", of=runs.trainer(config=runs.plan(seed=5)), options=options)
    with pytest.raises(StopRunError, match="Nothing was charged"):
        runs.fit(tmp_path / "run", options=options)
    assert os.listdir(tmp_path / "run" / "released" / "checkpoints") == ["0"]


@pytest.mark.full
def test_a_damaged_interrupted_state_is_not_gone_on_from(tmp_path, monkeypatch):
    expected, folder = runs.fit(), tmp_path / "run"
    interrupting(monkeypatch, 5)
    with pytest.raises(RunInterrupted):
        runs.fit(folder)
    for path in (folder / "private" / "staging" / "5").rglob("0*/[0-9]*"):
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)
    assert runs.same_bits(runs.fit(folder), expected)
