"""A run in a folder: what is on disk before a release, and how it resumes after a crash."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
import training_runs as runs

from bevel.accounting import Budget, Ledger
from bevel.errors import (
    FixArgumentsError,
    FixDataError,
    RestoreCheckpointError,
    RestoreLedgerError,
    StopRunError,
)
from bevel.execution_plan import NonPrivateConfig, PlanSecrets
from bevel.sharding import make_mesh
from bevel.training import RunInterrupted
from bevel.training.folder_run import FolderRun
from bevel.training.metrics_files import read_lines

# A failed read leaves other reads of Orbax pending, which then find their event loop closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    return runs.fit(folder), folder


@pytest.fixture
def half(unbroken, tmp_path):
    """The same run as `unbroken`, stopped after 4 steps."""
    folder = tmp_path / "run"
    runs.fit(folder, callback=runs.at_step(4))
    return folder


HALVES = ("released", "private")


def undo_release(folder, step):
    """Removes the last release from disk: its charge, checkpoint and metrics."""
    for half in HALVES:
        shutil.rmtree(folder / half / "checkpoints" / str(step))
    for path in ("released/metrics.jsonl", "released/ledger.jsonl", "private/raw.jsonl"):
        lines = (folder / path).read_text().splitlines(keepends=True)
        last = 2 if "raw" in path else 1
        (folder / path).write_text("".join(lines[:-last]))
        if "ledger" in path:
            head = json.loads(lines[-last - 1])["hash"]
            (folder / "private" / "ledger_head").write_text(head)


def charges(folder):
    lines = (folder / "released" / "ledger.jsonl").read_text().splitlines()[1:]
    entries = [json.loads(line)["entry"] for line in lines]
    return [(e["first"], e["stop"], e["attempt"]) for e in entries]


def metrics(folder):
    return list(read_lines(folder / "released" / "metrics.jsonl"))


def damage(folder, step):
    """Flips a bit in the middle of every file of a checkpoint's arrays."""
    for path in (folder / "released" / "checkpoints" / str(step)).rglob("0*/[0-9]*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_the_folder_holds_what_it_says(unbroken):
    _, folder = unbroken
    assert charges(folder) == [(0, 2, 0), (2, 4, 0), (4, 6, 0), (6, 8, 0)]
    assert [line["step"] for line in metrics(folder)] == [2, 4, 6, 8]
    assert sorted(map(int, os.listdir(folder / "released" / "checkpoints"))) == [4, 6, 8]
    raw = list(read_lines(folder / "private" / "raw.jsonl"))
    assert [row["step"] for row in raw] == list(range(8))
    assert sorted(os.listdir(folder)) == ["private", "released"]
    record, owners = (json.loads((folder / h / "run.json").read_text()) for h in HALVES)
    assert owners["status"] == record["ending"] == "complete" and owners["steps_taken"] == 8
    assert record["unit"] == "example" and record["relation"] == "ADD_OR_REMOVE_ONE"
    assert record["programs_compiled_ahead"] == owners["programs_compiled"] == 1
    assert {row["path"] for row in record["arrays"]} >= {"params/w", "params/b"}
    assert record["settings"]["plan.mechanism.noise_multiplier"] == 1.0


def test_secrets_are_in_one_file_only(unbroken):
    _, folder = unbroken
    secrets = runs.plan().secrets
    hidden = [secrets.root.hex(), str(secrets.sampling_seed), str(secrets.noise_seed)]
    hidden += [secrets.root.decode("latin1")]
    holders = {
        path.name
        for path in folder.rglob("*")
        if path.is_file()
        for secret in hidden
        if secret.encode("latin1") in path.read_bytes()
    }
    assert holders == {"secrets.json"}


def test_what_is_released_does_not_hold_what_is_not_private(unbroken):
    _, folder = unbroken
    allowed = {"step", "epsilon", "delta", "attempt"}
    assert all(set(line) == allowed for line in metrics(folder))


def test_a_resumed_run_is_bit_identical_to_an_unbroken_one(unbroken, half):
    state, folder = unbroken
    again = runs.fit(half)
    assert runs.same_bits(state, again)
    assert charges(half) == charges(folder)
    raw, expected = (list(read_lines(f / "private" / "raw.jsonl")) for f in (half, folder))
    for row in raw + expected:
        row.pop("examples_per_second", None)
    assert raw == expected


def test_steps_since_the_last_checkpoint_are_run_again_and_cost_nothing(unbroken, half):
    def stop_hard(state, metrics):
        if metrics["step"] == 6:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        runs.fit(half, callback=stop_hard)
    undo_release(half, 6)  # as if it had been killed while it saved
    assert charges(half)[-1] == (2, 4, 0)
    mesh = make_mesh("data=8")
    again = runs.fit(half, of=runs.trainer(mesh=mesh))
    np.testing.assert_allclose(again.params["w"], unbroken[0].params["w"], atol=1e-6)
    assert charges(half) == charges(unbroken[1])


def test_a_complete_run_comes_back_as_it_is(unbroken):
    state, folder = unbroken
    before = (folder / "released" / "ledger.jsonl").read_bytes()
    assert runs.same_bits(runs.fit(folder), state)
    assert (folder / "released" / "ledger.jsonl").read_bytes() == before


def test_a_damaged_checkpoint_falls_back_and_the_same_bits_cost_nothing(unbroken, half):
    damage(half, 4)
    with pytest.warns(UserWarning, match="cannot be read.*Resuming from step 2"):
        again = runs.fit(half)
    assert runs.same_bits(again, unbroken[0])
    assert charges(half) == charges(unbroken[1])
    assert [line["step"] for line in metrics(half)] == [2, 4, 6, 8]
    assert os.listdir(half / "private" / "damaged") == ["4-0-0"]


def test_released_steps_that_are_run_again_differently_get_fresh_noise_and_a_charge(unbroken, half):
    damage(half, 4)
    with pytest.warns(UserWarning) as said:
        again = runs.fit(half, of=runs.trainer(mesh=make_mesh("data=8")))
    found = " ".join(str(warning.message) for warning in said)
    assert "Resuming from step 2" in found
    assert "steps 2 to 4 were released before" in found and "charged again" in found
    assert charges(half) == [(0, 2, 0), (2, 4, 0), (2, 4, 1), (4, 6, 1), (6, 8, 1)]
    assert np.abs(again.params["w"] - np.asarray(unbroken[0].params["w"])).max() > 1e-3
    steps = [(line["step"], line["attempt"]) for line in metrics(half)]
    assert steps == [(2, 0), (4, 0), (4, 1), (6, 1), (8, 1)]
    # Batches are fresh too: using a batch twice is not the same as sampling twice.
    raw = list(read_lines(half / "private" / "raw.jsonl"))
    sizes = {
        k: [r["batch_size"] for r in raw if r["attempt"] == k and r["step"] in (2, 3)]
        for k in (0, 1)
    }
    assert sizes[0] != sizes[1]


def test_without_a_usable_checkpoint_the_run_does_not_start_over(half):
    for step in (2, 4):
        damage(half, step)
    (half / "released" / "checkpoints" / "0").exists() and damage(half, 0)
    before = sorted(os.listdir(half / "released" / "checkpoints"))
    with pytest.raises(RestoreCheckpointError, match=r"no checkpoint in .* is usable"):
        runs.fit(half)
    assert sorted(os.listdir(half / "released" / "checkpoints")) == before
    shutil.rmtree(half / "released" / "checkpoints")
    with pytest.raises(RestoreCheckpointError, match="does not start over"):
        runs.fit(half)


def test_a_half_written_checkpoint_is_not_one(unbroken, half):
    kept = half / "released" / "checkpoints"
    shutil.copytree(kept / "4", kept / "6.orbax-checkpoint-tmp-0")
    (kept / "8").mkdir()  # a copy that was cut short
    with pytest.warns(UserWarning, match="Resuming from step 4"):
        again = runs.fit(half)
    assert runs.same_bits(again, unbroken[0])


def test_another_plan_other_keys_and_other_frozen_parameters_are_refused(half, tmp_path):
    other = runs.plan(noise_multiplier=2.0)
    with pytest.raises(RestoreCheckpointError, match=r"noise_multiplier 1\.0 -> 2\.0"):
        runs.fit(half, of=runs.trainer(config=other))
    secrets = half / "private" / "secrets.json"
    saved = secrets.read_text()
    secrets.unlink()
    with pytest.raises(RestoreCheckpointError, match=r"secrets.json is missing.*noise key"):
        runs.fit(half)
    runs.fit(
        tmp_path / "other", of=runs.trainer(config=runs.plan(seed=4)), callback=runs.at_step(2)
    )
    shutil.copy(tmp_path / "other" / "private" / "secrets.json", secrets)
    with pytest.raises(RestoreCheckpointError, match=r"the data differ|another noise key"):
        runs.fit(half)
    secrets.write_text(saved)
    secrets.chmod(0o644)
    with pytest.raises(RestoreCheckpointError, match="others can read the noise key"):
        runs.fit(half)


@pytest.mark.full
def test_a_checkpoint_of_another_plan_is_passed_over(unbroken, half, tmp_path):
    other = tmp_path / "other"
    runs.fit(other, of=runs.trainer(config=runs.plan(noise_multiplier=2.0)))
    for name in HALVES:
        shutil.copytree(other / name / "checkpoints" / "8", half / name / "checkpoints" / "8")
    with pytest.warns(UserWarning, match=r"belongs to another plan.*Resuming from step 4"):
        again = runs.fit(half)
    assert runs.same_bits(again, unbroken[0])


def test_a_ledger_that_was_cut_or_lost_is_refused(half):
    ledger = half / "released" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:2]))
    with pytest.raises(RestoreLedgerError, match="lines are missing"):
        runs.fit(half)
    ledger.unlink()
    with pytest.raises(RestoreLedgerError, match="was charged in it"):
        runs.fit(half)
    assert not ledger.exists()


def test_a_run_ends_before_it_would_exceed_its_budget(tmp_path):
    plan = runs.plan()
    budget = Budget(plan.epsilon(5, delta=1e-5) + 1e-3, 1e-5)
    folder = tmp_path / "run"
    state = runs.fit(folder, options=runs.options(budget=budget))
    assert int(state.step) == 5
    assert charges(folder) == [(0, 2, 0), (2, 4, 0), (4, 5, 0)]
    record = json.loads((folder / "released" / "run.json").read_text())
    assert record["ending"] == "ended by the budget"
    assert Ledger.read(folder / "released" / "ledger.jsonl").spent().epsilon <= budget.epsilon
    assert metrics(folder)[-1]["epsilon"] == pytest.approx(plan.epsilon(5, delta=1e-5), rel=1e-6)
    assert int(runs.fit(folder, options=runs.options(budget=budget)).step) == 5
    with pytest.raises(StopRunError, match="does not allow a single step"):
        runs.fit(tmp_path / "none", options=runs.options(budget=Budget(0.01, 1e-5)))


def test_runs_share_a_ledger_and_no_two_have_one_key(tmp_path):
    shared = runs.options(ledger=tmp_path / "all.jsonl")
    runs.fit(tmp_path / "a", options=shared, callback=runs.at_step(2))
    with pytest.raises(FixArgumentsError, match="same key"):
        runs.fit(tmp_path / "b", options=shared)
    trainer = runs.trainer(config=runs.config())
    for name in ("c", "d"):  # one plan, two runs: each draws its own key
        runs.fit(tmp_path / name, of=trainer, options=shared, callback=runs.at_step(2))
    assert Ledger.read(tmp_path / "all.jsonl").runs == ("a", "c", "d")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(FixArgumentsError, match="another name"):
        runs.fit(tmp_path / "elsewhere" / "c", of=trainer, options=shared)


def test_nothing_is_released_before_it_is_charged_and_saved(tmp_path):
    folder, seen = tmp_path / "run", []

    def look(state, metrics):
        step = metrics["step"]
        assert charges(folder)[-1][1] == step
        assert (folder / "released" / "checkpoints" / str(step)).is_dir()
        assert list(read_lines(folder / "released" / "metrics.jsonl"))[-1]["step"] == step
        seen.append(step)

    def evaluate(params):
        step = metrics(folder)[-1]["step"] + 2 if metrics(folder) else 2
        assert charges(folder)[-1][1] == step
        return {"norm": float(np.linalg.norm(params["w"]))}

    runs.fit(folder, callback=look, evaluate=evaluate)
    assert seen == [2, 4, 6, 8] and metrics(folder)[-1]["norm"] > 0


def test_metrics_that_a_crash_left_out_are_written_on_resume(unbroken, half):
    lines = (half / "released" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (half / "released" / "metrics.jsonl").write_text(lines[0] + lines[1][:10])
    called = []
    runs.fit(half, callback=lambda s, m: called.append(m["step"]))
    assert called == [4, 6, 8]
    assert [line["step"] for line in metrics(half)] == [2, 4, 6, 8]


class Failing:
    """A source with one record that can only be read once while `broken` is set."""

    def __init__(self, bad):
        self.columns, self.broken, self.bad, self.reads = runs.data(), True, bad, 0

    def __len__(self):
        return runs.N

    def __getitem__(self, number):
        self.reads += number == self.bad
        if self.broken and number == self.bad and self.reads > 1:
            raise OSError("bad sector")
        return jax.tree.map(lambda x: x[number], self.columns)


def test_a_read_error_loses_nothing(unbroken, tmp_path):
    plan, folder = runs.plan(), tmp_path / "run"
    early = {0} | {i for step in range(5) for i in plan.batch(step, runs.N).tolist()}
    source = Failing(next(i for i in plan.batch(5, runs.N).tolist() if i not in early))
    with pytest.raises(FixDataError, match=f"record {source.bad} could not be read .*bad sector"):
        runs.fit(folder, given=source)
    assert charges(folder)[-1] == (2, 4, 0)  # which step it hit depends on the data
    assert [p.name for p in (folder / "private" / "staging").iterdir()] == ["5"]  # kept, not shown
    source.broken = False
    assert runs.same_bits(runs.fit(folder, given=source).params, unbroken[0].params)


@pytest.mark.full
@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_and_says_so(unbroken, tmp_path, number, code):
    folder = tmp_path / "run"

    def press(state, metrics):
        if metrics["step"] == 4:
            os.kill(os.getpid(), number)

    outside = signal.getsignal(number)  # under nohup, SIGHUP is ignored
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, before)
    try:
        with pytest.raises(RunInterrupted, match="the state is saved") as stopped:
            runs.fit(folder, callback=press)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, outside)
    assert stopped.value.exit_code == code and isinstance(stopped.value, KeyboardInterrupt)
    record, owners = (json.loads((folder / h / "run.json").read_text()) for h in HALVES)
    assert owners["status"] == "interrupted" and record["ending"] is None
    assert int(stopped.value.state.step) == 4
    assert runs.same_bits(runs.fit(folder), unbroken[0])
    assert charges(folder)[-1][1] == 8


def test_two_runs_of_one_folder_at_a_time_are_refused(half):
    held = FolderRun(half, runs.plan(), runs.options())
    with held, pytest.raises(FixArgumentsError, match="in use by another run"):
        runs.fit(half)


@pytest.mark.full
def test_a_run_keeps_its_name_when_its_folder_moves(unbroken, half, tmp_path):
    half.rename(tmp_path / "moved")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = runs.fit(tmp_path / "moved")
    assert runs.same_bits(again, unbroken[0])
    with pytest.raises(FixArgumentsError, match="contains the run 'run', not 'other'"):
        runs.fit(tmp_path / "moved", options=runs.options(name="other"))


def test_frozen_parameters_are_not_saved_and_must_be_the_same(tmp_path):
    params = {"base": {"w": np.ones((runs.D, 2), np.float32)}, "lora": {"b": np.zeros(2, "f4")}}

    def loss(p, batch, prng):
        return runs.loss({"w": p["base"]["w"], "b": p["lora"]["b"]}, batch, prng)

    def go(begin, **changed):
        trainer = runs.trainer(loss_fn=loss, trainable="lora/*", ema_decay=0.5)
        return runs.fit(tmp_path / "run", of=trainer, begin=begin, **changed)

    go(params, callback=runs.at_step(2))
    saved = (tmp_path / "run" / "released" / "checkpoints" / "2" / "_METADATA").read_text()
    assert "lora" in saved and "base" not in saved
    other = {**params, "base": {"w": params["base"]["w"] * 2}}
    with pytest.raises(RestoreCheckpointError, match="the frozen parameters differ"):
        go(other)
    seen = []
    state = go(params, evaluate=lambda p: {"b": seen.append(p) or 0})
    assert int(state.step) == runs.STEPS
    assert np.array_equal(seen[-1]["base"]["w"], params["base"]["w"])
    assert np.array_equal(seen[-1]["lora"]["b"], state.average["lora"]["b"])


FULL = """
import resource, signal, sys, warnings
import jax
jax.config.update("jax_platforms", "cpu")
import numpy as np
import training_runs as runs
from bevel.errors import FreeSpaceError

folder, bytes_ = sys.argv[1], int(sys.argv[2])
warnings.simplefilter("ignore")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
begin = {"w": runs.params()["w"], "b": np.zeros(4096, np.float32)}
def loss(p, batch, prng):
    return runs.loss({"w": p["w"], "b": p["b"][:2]}, batch, prng)
def fill(state, metrics):
    if metrics["step"] == 4 and bytes_ >= 0:  # from here on no file can grow beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
try:
    step = int(runs.fit(folder, of=runs.trainer(loss_fn=loss), begin=begin, callback=fill).step)
    print("steps", step)
except FreeSpaceError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.full
@pytest.mark.parametrize("limit, what", [(0, "raw.jsonl"), (9000, "staging")])
def test_a_full_disk_is_an_error_and_the_last_checkpoint_stays(unbroken, tmp_path, limit, what):
    folder = tmp_path / "run"
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}"}
    command = [sys.executable, "-c", FULL, str(folder)]

    def run(limit):
        return subprocess.run(
            [*command, str(limit)], capture_output=True, text=True, env=environment, check=False
        )

    full = run(limit)
    assert full.returncode == 7, full.stderr[-3000:]
    assert f"{what} could not be written because the disk is full" in full.stdout, full.stdout
    again = run(-1)
    assert again.returncode == 0 and "steps 8" in again.stdout, again.stderr[-3000:]
    assert charges(folder) == charges(unbroken[1])


def test_the_terminal_shows_nothing_before_the_checkpoint_is_there(tmp_path, monkeypatch):
    folder, shown = tmp_path / "run", []

    def checkpoint(self, metrics):
        shown.append(metrics["step"])
        assert (folder / "released" / "checkpoints" / str(metrics["step"])).is_dir()

    monkeypatch.setattr("bevel.training.progress.Progress.checkpoint", checkpoint)
    runs.fit(folder, evaluate=lambda params: {"seen": len(shown)})
    assert shown == [2, 4, 6, 8]


def test_the_last_metrics_are_written_on_resume_too(unbroken, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(unbroken[1], folder)
    lines = (folder / "released" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "released" / "metrics.jsonl").write_text("".join(lines[:-1]))
    called = []
    runs.fit(folder, callback=lambda s, m: called.append(m["step"]))
    assert called == [8] and [line["step"] for line in metrics(folder)] == [2, 4, 6, 8]


def test_a_run_without_noise_resumes_like_any_other(tmp_path):
    """It has no noise state, so the private halves of its checkpoints have no arrays."""

    def trainer():
        plan = NonPrivateConfig(runs.STEPS, 8).make(secrets=PlanSecrets.for_tests(3))
        return runs.trainer(config=plan)

    def stop(state, metrics):
        if metrics["step"] == 4:
            raise RuntimeError("stop")

    whole = runs.fit(tmp_path / "whole", of=trainer())
    with pytest.raises(RuntimeError, match="stop"):
        runs.fit(tmp_path / "run", of=trainer(), callback=stop)
    assert runs.same_bits(runs.fit(tmp_path / "run", of=trainer()).params, whole.params)


def test_a_run_of_an_earlier_draw_does_not_resume(half):
    identity = half / "private" / "identity.json"
    recorded = json.loads(identity.read_text())
    assert recorded["settings"].pop("plan.draw") > 1
    recorded["digests"]["plan"] = "0" * 64
    identity.write_text(json.dumps(recorded))
    ledger = (half / "released" / "ledger.jsonl").read_bytes()
    with pytest.raises(RestoreCheckpointError, match="version 1 of the draw of batches"):
        runs.fit(half)
    assert (half / "released" / "ledger.jsonl").read_bytes() == ledger
