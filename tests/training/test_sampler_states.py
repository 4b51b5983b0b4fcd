"""States of samplers: a resumed run draws no step again, and a lost state changes nothing."""

import numpy as np
import pytest
import training_runs as runs

from bevel.batch_selection import BMinSepSampling, MinSepState
from bevel.execution_plan import PlanSecrets
from bevel.training.sampler_states import KEPT, SamplerStates

RESTING = (np.array([3, 10**12]), np.array([], np.int64), np.array([7]))


def saved(folder, step=5, attempt=0):
    states = SamplerStates(folder, b"k" * 32)
    states.save(MinSepState(step, RESTING), attempt)
    return states


def test_a_state_is_read_as_it_was_written(tmp_path):
    found = saved(tmp_path).load(5, 0)
    assert found.step == 5 and len(found.resting) == 3
    assert all(map(np.array_equal, found.resting, RESTING))
    (path,) = (tmp_path / "sampler_states").iterdir()
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
    nothing = MinSepState(0, ())
    saved(tmp_path).save(nothing, 1)
    assert saved(tmp_path).load(0, 1).resting == ()


def test_only_the_state_of_this_step_attempt_and_run_is_used(tmp_path):
    states = saved(tmp_path)
    assert states.load(4, 0) is None and states.load(5, 1) is None
    assert SamplerStates(tmp_path, b"j" * 32).load(5, 0) is None
    (tmp_path / "sampler_states" / "0-5").rename(tmp_path / "sampler_states" / "0-6")
    assert states.load(6, 0) is None


@pytest.mark.parametrize("damage", [lambda b: b[:-8], lambda b: b[:-1] + b"!", lambda b: b""])
def test_a_damaged_state_is_not_used(tmp_path, damage):
    states, path = saved(tmp_path), tmp_path / "sampler_states" / "0-5"
    path.write_bytes(damage(path.read_bytes()))
    assert states.load(5, 0) is None


def test_old_states_are_removed(tmp_path):
    for step in range(10):
        states = saved(tmp_path, step)
    assert len(list((tmp_path / "sampler_states").iterdir())) == KEPT
    assert states.load(9, 0) is not None and states.load(0, 0) is None


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_draws_earlier_steps_only_if_their_state_is_lost(tmp_path, monkeypatch, lost):
    def trainer():
        return runs.trainer(config=runs.BLT.make(secrets=PlanSecrets.for_tests(3)))

    expected = runs.fit(tmp_path / "unbroken", of=trainer())
    runs.fit(tmp_path / "run", of=trainer(), callback=runs.at_step(4))
    states = tmp_path / "run" / "private" / "sampler_states"
    assert (states / "0-4").exists() and not list(
        (tmp_path / "run" / "released").rglob("*sampler*")
    )
    if lost:
        (states / "0-4").write_bytes(b"damaged")
    drawn, next_batch = [], BMinSepSampling.next_batch

    def recorded(sampler, state, num_examples, rng):
        drawn.append(state.step)
        return next_batch(sampler, state, num_examples, rng)

    monkeypatch.setattr(BMinSepSampling, "next_batch", recorded)
    assert runs.same_bits(runs.fit(tmp_path / "run", of=trainer()), expected)
    assert drawn == list(range(0 if lost else 4, runs.STEPS))
