"""An export is a function of what was released, and says what is promised about it."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
import training_runs as runs

from bevel.accounting import Ledger
from bevel.auditing.traces import released_traces
from bevel.errors import FixArgumentsError, RestoreCheckpointError, RestoreLedgerError
from bevel.execution_plan import NonPrivateConfig
from bevel.shipping import export, load, read_statement, verify
from bevel.training import load as load_run


def contents(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_model_is_the_released_one(finished, exported):
    run = load_run(finished)
    params = safetensors.numpy.load_file(exported / "model.safetensors")
    assert params.keys() == {"w", "b"} and runs.same_bits(params, run.params)
    assert read_statement(exported).model.parameters == "average" and run.is_average


def test_the_statement_says_what_the_ledger_says(finished, exported):
    statement, ledger = read_statement(exported), Ledger.read(finished / "released/ledger.jsonl")
    spent = ledger.spent()
    assert (statement.epsilon, statement.delta) == (spent.epsilon, spent.delta)
    assert (statement.unit, statement.relation) == ("example", "ADD_OR_REMOVE_ONE")
    assert statement.budget == {"epsilon": 5.0, "delta": 1e-3}
    assert (statement.ledger.head, statement.ledger.lines) == (ledger.head, ledger.line_count)
    assert statement.ledger.lines_of_run == [[2, ledger.line_count]]
    assert statement.claim.startswith("In real-number arithmetic, everything that the ledger lists")
    assert f"({spent.epsilon!r}, 0.001)-differentially private" in statement.claim
    assert "8 times: Gaussian noise of 1.0 times the sensitivity" in statement.mechanism.words
    assert statement.mechanism.settings["plan.clip.l2_clip_norm"] == 1.0
    assert statement.arithmetic.sums_and_noise == "float32" and not statement.arithmetic.exact
    assert statement.key_is_secret and statement.tuning == "not counted"
    assert "The run is complete" in statement.run.status
    assert {"python", "jax", "bevel"} <= statement.versions["exported"].keys()
    assert (exported / "ledger.jsonl").read_bytes() == ledger.path.read_bytes()


@pytest.mark.parametrize("model_format", ["safetensors", "orbax"])
def test_a_copy_of_released_gives_the_same_bytes(finished, tmp_path, model_format):
    """So nothing private, and no clock, is in an export."""
    shutil.copytree(finished / "released", tmp_path / "elsewhere" / "copy")
    first = export(finished, tmp_path / "first", model_format)
    second = export(tmp_path / "elsewhere" / "copy", tmp_path / "other" / "second", model_format)
    assert contents(first) == contents(second)
    times = {path.stat().st_mtime for path in (first, *first.rglob("*"))}
    assert times == {315_532_800.0}
    assert b"timestamp" not in b"".join(contents(first).values())
    assert str(tmp_path).encode() not in b"".join(contents(first).values())


def test_the_private_half_is_not_opened(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    for path in (tmp_path / "run" / "private").rglob("*"):
        if path.is_file():
            path.write_bytes(b"nonsense")
    folder = export(tmp_path / "run")
    assert folder == tmp_path / "run" / "export" and verify(folder).passed


def test_an_audit_finds_no_trace_of_secrets_in_an_export(finished, exported, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(exported, tmp_path / "run" / "released" / "export")
    assert not released_traces(tmp_path / "run")


def test_an_orbax_export_is_read_by_orbax(finished, tmp_path):
    import orbax.checkpoint as ocp

    folder = export(finished, tmp_path / "export", "orbax")
    with ocp.PyTreeCheckpointer() as reader:
        params = reader.restore(folder / "model")
    assert runs.same_bits(params, load_run(finished).params)
    assert verify(folder).passed and runs.same_bits(load(folder).params, params)


def test_an_earlier_step_is_stated_as_such(finished, tmp_path):
    folder = export(finished, tmp_path / "export", step=4)
    statement = read_statement(folder)
    assert statement.run.step == 4 and "after step 4 of 8" in statement.run.status
    assert runs.same_bits(load(folder).params, load_run(finished, step=4).params)
    assert verify(folder).passed
    with pytest.raises(RestoreCheckpointError, match="no checkpoint of step 3"):
        export(finished, tmp_path / "other", step=3)


def stop(state, metrics):
    if metrics["step"] == 4:
        raise RuntimeError("stop")


def test_an_interrupted_run_exports_its_last_release_and_says_so(tmp_path):
    trainer = runs.trainer(config=runs.config().make())
    options = runs.options(delta=1e-3)
    with pytest.raises(RuntimeError, match="stop"):
        runs.fit(tmp_path / "run", of=trainer, options=options, callback=stop)
    statement = read_statement(export(tmp_path / "run"))
    assert statement.run.ending is None and statement.run.step == 4
    assert "The run has not ended: this is its last released checkpoint, after step 4 of 8" in (
        statement.run.status
    )
    assert statement.model.parameters == "last step"
    # It ends later: the statement was true, and more is spent now.
    runs.fit(tmp_path / "run", of=runs.trainer(config=runs.config().make()), options=options)
    later = verify(tmp_path / "run" / "export", tmp_path / "run" / "released" / "ledger.jsonl")
    assert later.passed and later.epsilon == statement.epsilon < later.epsilon_now
    assert "The statement was true at its line" in str(later)
    assert "grown by 2 line(s) since the export" in str(later)


def test_a_callback_that_ended_the_run_is_a_warning(tmp_path):
    trainer = runs.trainer(config=runs.config().make())
    options = runs.options(delta=0.1)
    runs.fit(tmp_path / "run", of=trainer, options=options, callback=runs.at_step(2))
    statement = read_statement(export(tmp_path / "run"))
    assert statement.run.status.endswith("The run has ended: 'ended by the callback'.")
    large, callback = statement.warnings
    assert "delta 0.1 is not below one over the number of examples (48)" in large
    assert "A callback ended the run" in callback


def test_a_known_seed_protects_nothing(tmp_path):
    runs.fit(tmp_path / "run", options=runs.options(delta=1e-3))
    folder = export(tmp_path / "run")
    statement = read_statement(folder)
    assert statement.claim.startswith("Nothing is protected: the noise comes from a known seed")
    assert statement.epsilon is None and not statement.key_is_secret and statement.warnings
    result = verify(folder)
    assert result.passed and "nothing is promised" in str(result)
    assert "differentially private" not in str(result)


@pytest.mark.parametrize("delta", [None, 1e-3])
def test_a_run_without_privacy_promises_nothing(tmp_path, delta):
    config = NonPrivateConfig(runs.STEPS, 8)
    runs.fit(tmp_path / "run", of=runs.trainer(config=config), options=runs.options(delta=delta))
    folder = export(tmp_path / "run")
    statement = read_statement(folder)
    assert statement.epsilon is None and statement.delta == delta
    assert statement.claim.startswith("Nothing is promised: some of what was released had no noise")
    assert "values without noise" in statement.mechanism.words
    assert verify(folder).passed and "differentially private" not in str(verify(folder))


def test_correlated_noise_is_stated_as_it_was_charged(tmp_path):
    trainer = runs.trainer(config=runs.BANDMF.make())
    runs.fit(tmp_path / "run", of=trainer, options=runs.options(delta=1e-3))
    folder = export(tmp_path / "run")
    spent = Ledger.read(tmp_path / "run/released/ledger.jsonl").spent(1e-3)
    assert read_statement(folder).epsilon == spent.epsilon and verify(folder).passed


def test_epsilon_covers_all_runs_of_the_ledger(tmp_path):
    options = runs.options(delta=1e-3, ledger=tmp_path / "all.jsonl")
    for name in ("first", "second"):
        trainer = runs.trainer(config=runs.config().make())
        runs.fit(tmp_path / name, of=trainer, options=options)
    folder = export(tmp_path / "first", tmp_path / "export")
    statement = read_statement(folder)
    assert statement.epsilon == Ledger.read(tmp_path / "all.jsonl").spent(1e-3).epsilon
    assert statement.ledger.lines_of_run == [[2, 5]] and statement.ledger.lines == 9
    assert verify(folder).passed
    # A copy of released/ does not contain this ledger.
    shutil.copytree(tmp_path / "first" / "released", tmp_path / "moved" / "away" / "copy")
    with pytest.raises(RestoreLedgerError, match=r"no ledger at .*all.jsonl.*ledger=\.\.\."):
        export(tmp_path / "moved" / "away" / "copy")
    again = export(
        tmp_path / "moved" / "away" / "copy", tmp_path / "again", ledger=tmp_path / "all.jsonl"
    )
    assert contents(again) == contents(folder)


def test_a_delta_is_needed_and_can_be_chosen(tmp_path):
    runs.fit(tmp_path / "run", of=runs.trainer(config=runs.config().make()))
    with pytest.raises(FixArgumentsError, match=r"has a delta.*pass delta=\.\.\."):
        export(tmp_path / "run")
    with pytest.raises(FixArgumentsError, match="delta=2"):
        export(tmp_path / "run", delta=2)
    assert not (tmp_path / "run" / "export").exists()
    low, high = (export(tmp_path / "run", tmp_path / str(d), delta=d) for d in (1e-6, 1e-2))
    assert read_statement(low).epsilon > read_statement(high).epsilon
    assert verify(low).passed and verify(high).passed


def test_a_model_that_the_ledger_does_not_know_is_not_exported(finished, tmp_path):
    shutil.copytree(finished / "released", tmp_path / "copy")
    ledger = tmp_path / "copy" / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(RestoreLedgerError, match=r"released step 8 .*has step 6 of attempt 0"):
        export(tmp_path / "copy")
    assert verify(export(tmp_path / "copy", tmp_path / "six", step=6)).passed
    ledger.write_bytes(lines[0])
    with pytest.raises(RestoreLedgerError, match="has step 0 of attempt 0"):
        export(tmp_path / "copy")
    ledger.write_bytes(lines[0] + lines[2])
    with pytest.raises(RestoreLedgerError, match="lines were removed"):
        export(tmp_path / "copy")
    ledger.unlink()
    with pytest.raises(RestoreLedgerError, match="what the run spent is unknown"):
        export(tmp_path / "copy")
    record = json.loads((finished / "released/run.json").read_text())
    for changed in ({"unit": "user"}, {"plan": {"fingerprint": "f" * 64}}):
        ledger.write_bytes(b"".join(lines))
        (tmp_path / "copy" / "run.json").write_text(json.dumps(record | changed))
        with pytest.raises(RestoreLedgerError, match="another plan, unit or relation"):
            export(tmp_path / "copy")


def test_nothing_is_replaced(finished, exported, tmp_path):
    with pytest.raises(FixArgumentsError, match="an export never replaces anything"):
        export(finished, exported)
    (tmp_path / "empty").mkdir()
    assert export(finished, tmp_path / "empty") == tmp_path / "empty"
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    with pytest.raises(FixArgumentsError, match="pass the name of a new folder"):
        export(finished, tmp_path / "link")


def test_the_ledger_can_be_left_out(finished, tmp_path):
    folder = export(finished, tmp_path / "export", include_ledger=False)
    assert not (folder / "ledger.jsonl").exists()
    with pytest.raises(FixArgumentsError, match="there is no ledger at"):
        verify(folder)
    assert verify(folder, finished / "released" / "ledger.jsonl").passed


def test_wrong_options_are_named(finished, tmp_path):
    with pytest.raises(FixArgumentsError, match="format='zip': pass one of 'safetensors', 'orbax'"):
        export(finished, tmp_path / "x", "zip")
    for tuned in ("", "two\nlines", "\x1b[2J", "x" * 1001, None):
        with pytest.raises(FixArgumentsError, match="tuned="):
            export(finished, tmp_path / "x", tuned=tuned)
    with pytest.raises(FixArgumentsError, match="is not the folder of a run"):
        export(tmp_path, tmp_path / "x")
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".x*"))
    folder = export(finished, tmp_path / "x", tuned="the learning rate, on public data")
    assert read_statement(folder).tuning == "the learning rate, on public data"
    assert "'the learning rate, on public data'" in str(verify(folder))


def test_frozen_parameters_are_named_and_not_shipped(tmp_path):
    trainer = runs.trainer(config=runs.config().make(), trainable="b")
    runs.fit(tmp_path / "run", of=trainer, options=runs.options(delta=1e-3))
    folder = export(tmp_path / "run")
    params, statement = load(folder, like=runs.params())
    assert statement.model.frozen == ["w"] and list(load(folder).params) == ["b"]
    assert np.array_equal(params["w"], runs.params()["w"])
    assert jax.tree.structure(params) == jax.tree.structure(runs.params())


def test_bfloat16_stays_bfloat16(tmp_path):
    begin = jax.tree.map(lambda x: x.astype("bfloat16"), runs.params())

    def loss(params, batch, prng):
        return runs.loss(jax.tree.map(lambda x: x.astype("float32"), params), batch, prng)

    trainer = runs.trainer(config=runs.config().make(), loss_fn=loss, ema_decay=0.9)
    runs.fit(tmp_path / "run", of=trainer, begin=begin, options=runs.options(delta=1e-3))
    for model_format in ("safetensors", "orbax"):
        folder = export(tmp_path / "run", tmp_path / model_format, model_format)
        params, statement = load(folder)
        assert {str(x.dtype) for x in params.values()} == {"bfloat16"}
        assert runs.same_bits(params, load_run(tmp_path / "run").params)
        assert statement.arithmetic.sums_and_noise == "float32"
