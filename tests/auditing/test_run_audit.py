"""`audit` gives a bound below the promise for honest trainers, and clear answers to bad input."""

import audited_runs as runs
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.auditing import (
    audit,
    gradient_canaries,
    mislabelled_records,
    read_audit,
    record_canaries,
    run_audit,
)
from bevel.auditing.run_audit import (
    audited_trainer,
    data_with_canaries,
    ranks_of,
    result_of,
)
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig, NonPrivateConfig, PlanSecrets
from bevel.training import RunOptions, Trainer

N = 400
OPTIONS = RunOptions(progress=False, compilations=1)
CONFIG = DPSGDConfig.default(N, N, 1, noise_multiplier=1.0)


def data():
    x = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int32)}


def params():
    return {"w": jnp.zeros((4, 100))}


def loss(params, batch, prng):
    logits = batch["x"] @ params["w"][:, :2]
    each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return each.mean(), {}


def trainer(config=CONFIG, rate=0.1):
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    return Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(rate))


def small(of=None, **changed):
    fields = {"canaries": 300, "delta": 1e-5, "seed": 0, "options": OPTIONS}
    return audit(of or trainer(), data(), params(), **fields | changed)


@pytest.mark.parametrize("attack", ["every step", "last model"])
def test_a_result_says_what_was_done(attack):
    result = small(attack=attack)
    assert result.passed and 0 < result.epsilon < result.promised_epsilon
    assert result.canaries == 300 and result.attack == attack
    assert result.held_in.shape == result.scores.shape == (300,)
    assert "w (300 canaries)" in str(result)


def test_runs_add_their_canaries():
    config = DPSGDConfig.default(N, N, 1, noise_multiplier=1.0)
    of = Trainer(config=config, loss_fn=loss, optimizer=optax.sgd(0.1))
    result = small(of, runs=2)
    assert result.canaries == 600
    assert (result.held_in[:300] != result.held_in[300:]).any()


def test_records_are_scored_by_their_loss():
    records = mislabelled_records(data(), "y", 200, seed=0)
    of = trainer(DPSGDConfig.default(N, N, 4, noise_multiplier=1e-3), rate=5.0)
    result = small(of, canaries=record_canaries(records, N, seed=0))
    assert "200 records, by their loss" in str(result)
    held_in, out = (result.scores[result.held_in == side].mean() for side in (True, False))
    assert held_in > out


def test_an_audit_does_not_use_the_secrets_of_the_trainer():
    plan = CONFIG.make()
    of = Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(0.1))
    small(of)
    of.fit(data(), params(), options=OPTIONS)  # its noise was not used yet


def test_a_folder_charges_the_audited_run(tmp_path):
    from bevel.accounting import Ledger

    small(folder=tmp_path / "run")
    assert Ledger.read(tmp_path / "run" / "released" / "ledger.jsonl").line_count > 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"delta": 0.0}, "delta=0.0: pass a number between 0 and 1, both excluded"),
        ({"delta": 1}, "delta=1: pass a number between 0 and 1"),
        ({"delta": None}, "the plan has no budget to take delta from"),
        ({"canaries": 4}, "canaries=4: too few for significance 0.05"),
        ({"canaries": 500}, "canaries=500, but the data has only 400 units"),
        ({"significance": 1.5}, "significance=1.5 must be at least 1e-300 and below 1"),
        ({"attack": "black box"}, "attack='black box': write 'every step' or 'last model'"),
        ({"runs": 2, "folder": "x"}, "a folder holds one run"),
    ],
)
def test_bad_arguments_are_refused(changed, message):
    with pytest.raises(FixArgumentsError, match=message):
        small(**changed)


def test_a_plan_without_noise_is_refused():
    of = Trainer(config=NonPrivateConfig(N, 10, 1), loss_fn=loss, optimizer=optax.sgd(0.1))
    with pytest.raises(FixArgumentsError, match="the plan adds no noise"):
        small(of)


def test_an_attack_that_sees_nothing_is_an_error():
    with pytest.raises(FixArgumentsError, match="all 300 scores are equal"):
        small(trainer(rate=0.0), attack="last model")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_an_error(wrong):
    with pytest.raises(FixArgumentsError, match=r"1 of 3 scores are not finite.*diverged"):
        result_of(
            trainer().plan, np.array([1.0, wrong, 0.0]), np.array([True, False, True]),
            delta=1e-5, significance=0.05, strongest=1.0, attack="every step", canaries=None,
        )  # fmt: skip


def test_a_run_that_diverges_is_an_error_and_not_a_passed_audit():
    with pytest.raises(FixArgumentsError, match="scores are not finite"):
        small(trainer(rate=np.inf), attack="last model")


def test_canaries_are_longer_than_the_clip_norm_and_shortened_to_it():
    """However long their gradients are, they contribute as much as one example may."""
    of = trainer(DPSGDConfig.default(N, N, 1, noise_multiplier=1e-6, l2_clip_norm=0.01))
    canaries = gradient_canaries(params(), 300, N, seed=0)
    audited = audited_trainer(of, canaries)
    data_of = data_with_canaries(data(), canaries)
    state = audited.fit(data_of, params(), options=OPTIONS)
    own = np.asarray(state.opt_state.sums)[0] - np.asarray(state.noise_state.others)[0]
    np.testing.assert_allclose(own * N, canaries.held_in, atol=1e-3)


def test_a_folder_keeps_the_record_and_is_used_once(tmp_path):
    result = small(folder=tmp_path / "run")
    assert read_audit(tmp_path / "run")["bound"] == result.epsilon
    assert "all files under released/" in str(result) and result.traces == ()
    with pytest.raises(FixArgumentsError, match="already holds a run, and an audit cannot resume"):
        small(folder=tmp_path / "run")


def test_a_sum_without_noise_in_a_released_file_is_found(tmp_path, monkeypatch):
    """The noised sums are right, but the optimizer state has the sums themselves too."""
    honest = run_audit.AuditedTrainer.fit

    def fit(self, dataset, begin, *, folder, **options):
        state = honest(self, dataset, begin, folder=folder, **options)
        bare = np.zeros((4, 100))
        own = self.canaries.held_in
        bare[tuple(self.canaries.index[own].T)] = 1
        np.save(folder / "released" / "momentum.npy", bare)
        return state

    monkeypatch.setattr(run_audit.AuditedTrainer, "fit", fit)
    of = trainer(DPSGDConfig.default(N, N, 1, noise_multiplier=4.0))
    result = small(of, folder=tmp_path / "run")
    assert result.epsilon <= result.limit and not result.passed
    assert [trace.file for trace in result.traces] == ["momentum.npy"]


def test_coins_on_one_side_are_an_error():
    with pytest.raises(FixArgumentsError, match="all 3 coins fell on the same side"):
        result_of(
            trainer().plan, np.arange(3.0), np.ones(3, bool), delta=1e-5, significance=0.05,
            strongest=1.0, attack="every step", canaries=None,
        )  # fmt: skip


def test_equal_scores_are_ordered_without_regard_to_the_coins():
    ranks = ranks_of(np.array([1.0, 0.0, 0.0, 0.0, 2.0]))
    assert sorted(ranks) == [0, 1, 2, 3, 4] and ranks[0] == 3 and ranks[4] == 4


def test_a_budget_is_the_promise():
    config = CONFIG.calibrate(epsilon=3, delta=1e-4)
    result = small(trainer(config), delta=None)
    assert (result.promised_epsilon, result.delta) == (3, 1e-4)
    assert result.delta > runs.DELTA
