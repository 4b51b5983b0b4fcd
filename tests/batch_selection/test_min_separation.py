"""Minimum separation: the exact distribution of one example's steps, and independence."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows

from bevel.batch_selection import BMinSepSampling, MinSepState
from bevel.errors import FixArgumentsError


def path_law(p, min_sep, steps, warm):
    """The distribution of the set of steps of one example, by the number of steps left to rest."""
    slots = min_sep - 1
    rate = p / (1 + p * slots)
    start = {left: rate for left in range(1, min_sep)} if warm else {}
    paths = {((), left): chance for left, chance in start.items()}
    paths[(), 0] = 1 - sum(start.values())
    for step in range(steps):
        after = {}
        for (used, left), chance in paths.items():
            options = [((used, left - 1), 1.0)]
            if left == 0:
                options = [(((*used, step), slots), p), ((used, 0), 1 - p)]
            for key, probability in options:
                after[key] = after.get(key, 0) + chance * probability
        paths = after
    law = {}
    for (used, _), chance in paths.items():
        law[used] = law.get(used, 0) + chance
    return law


def uses(sampler, num_examples, seed):
    batches = [b.tolist() for b in sampler.batch_iterator(num_examples, seed)]
    return tuple(
        tuple(t for t, batch in enumerate(batches) if i in batch) for i in range(num_examples)
    )


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("p, min_sep", [(0.5, 2), (0.4, 3), (1.0, 3), (0.5, 1)])
def test_the_steps_of_an_example_follow_their_distribution(p, min_sep, warm):
    sampler = BMinSepSampling(p, 4, min_sep, warm_start=warm)
    drawn = [example for seed in range(100) for example in uses(sampler, 10, seed)]
    assert_follows(drawn, path_law(p, min_sep, 4, warm))


def test_examples_are_independent():
    sampler = BMinSepSampling(0.5, 3, 2)
    law = path_law(0.5, 2, 3, True)
    both = {pair: law[pair[0]] * law[pair[1]] for pair in itertools.product(law, repeat=2)}
    assert_follows([uses(sampler, 2, seed) for seed in range(1200)], both)


def test_a_warm_start_gives_all_batches_the_same_expected_size():
    warm = BMinSepSampling(0.2, 10, 6)
    sizes = np.mean(
        [[len(b) for b in warm.batch_iterator(400, seed)] for seed in range(60)], axis=0
    )
    assert sizes == pytest.approx(np.full(10, 400 * 0.2 / (1 + 0.2 * 5)), rel=0.06)
    cold = BMinSepSampling(0.2, 10, 6, warm_start=False)
    first = [len(next(iter(cold.batch_iterator(400, seed)))) for seed in range(60)]
    assert np.mean(first) == pytest.approx(80, rel=0.05)


def test_truncation_keeps_a_random_subset_and_the_others_do_not_rest():
    sampler = BMinSepSampling(1.0, 2, 2, warm_start=False, truncated_batch_size=1)
    law = {(a, b): 1 / 6 for a, b in itertools.permutations(range(3), 2)}
    drawn = [
        tuple(int(b[0]) for b in sampler.batch_iterator(3, seed) if len(b) == 1)
        for seed in range(600)
    ]
    assert_follows(drawn, law)


def test_a_saved_state_resumes_the_run():
    sampler = BMinSepSampling(0.3, 12, 4)
    expected = list(sampler.batch_iterator(50, 9))
    state = sampler.initial_state(50, 9)
    for step in range(7):
        batch, state = sampler.next_batch(state, 50, 9)
        assert np.array_equal(batch, expected[step])
    restored = type(state)(state.step, tuple(np.array(r) for r in state.resting))
    assert sum(map(len, restored.resting)) <= 50
    for step in range(7, 12):
        batch, restored = sampler.next_batch(restored, 50, 9)
        assert np.array_equal(batch, expected[step])
    with pytest.raises(FixArgumentsError, match="accounted for"):
        sampler.next_batch(restored, 50, 9)


def test_resting_examples_are_those_of_the_last_batches():
    sampler = BMinSepSampling(0.4, 12, 4, warm_start=False)
    state = sampler.initial_state(30, 2)
    everyone = np.arange(30)
    for _ in range(12):
        _, state = sampler.next_batch(state, 30, 2)
        fresh = MinSepState(state.step, state.resting)  # sorts its examples from the start
        expected = np.isin(everyone, np.concatenate(state.resting))
        assert np.array_equal(state.are_resting(everyone), expected)
        assert np.array_equal(fresh.are_resting(everyone), expected)
        assert len(state.resting) <= 3


def test_the_state_does_not_hold_the_seed():
    state = BMinSepSampling(0.3, 12, 4).initial_state(50, 987654321)
    assert set(vars(state)) == {"step", "resting"}


@pytest.mark.parametrize(
    "options",
    [(1.1, 3, 2), (0.5, 0, 2), (0.5, 3, 0), (0.5, 3, 2, True, 0)],
)
def test_wrong_options(options):
    with pytest.raises(FixArgumentsError, match=r"sampling_prob|iterations|min_sep|truncated"):
        BMinSepSampling(*options)
