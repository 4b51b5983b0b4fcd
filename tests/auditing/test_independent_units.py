"""The guarantee holds given the batches of all other units, for each sampler that claims it.

All outputs of a tiny mechanism are enumerated: two units, two or three steps, noise of integers.
The unit alone is the mechanism that the accounting is about.
"""

import collections
import itertools

import numpy as np
import pytest
from scipy import stats

from bevel.auditing.independent_units import units_are_independent
from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
)
from bevel.execution_plan import BandMFConfig, BLTConfig, DPSGDConfig, PlanSecrets

NOISE = {-2: 0.1, -1: 0.2, 0: 0.4, 1: 0.2, 2: 0.1}
EPSILONS = (0.0, 0.3, 0.7, 1.2)


def product(one):
    """Both units draw their pattern by themselves."""
    return {(a, b): p * q for a, p in one.items() for b, q in one.items()}


def poisson(q, steps):
    every = itertools.product((0, 1), repeat=steps)
    return {u: np.prod([q if x else 1 - q for x in u]) for u in every}


def min_sep(q, steps):
    """A unit that was used rests for one step. No unit rests at the start."""
    found = {}
    for u in itertools.product((0, 1), repeat=steps):
        p, rests = 1.0, False
        for x in u:
            p *= (0.0 if x else 1.0) if rests else (q if x else 1 - q)
            rests = bool(x)
        found[u] = p
    return {u: p for u, p in found.items() if p}


def fixed(steps):
    """One of the two units is drawn at each step."""
    each = itertools.product((0, 1), repeat=steps)
    return {(u, tuple(1 - x for x in u)): 0.5**steps for u in each}


def truncated(q, steps):
    """Poisson batches of which at most one unit is kept, at random."""
    one = {(0, 0): (1 - q) ** 2, (1, 0): q * (1 - q) + q * q / 2, (0, 1): q * (1 - q) + q * q / 2}
    found = {}
    for drawn in itertools.product(one.items(), repeat=steps):
        pair = tuple(zip(*(u for u, _ in drawn), strict=True))
        found[pair] = np.prod([p for _, p in drawn])
    return found


INDEPENDENT = {
    "poisson": (CyclicPoissonSampling(0.4, 3), product(poisson(0.4, 3))),
    "groups": (
        CyclicPoissonSampling(0.4, 2, None, 2, PartitionType.INDEPENDENT),
        product({(0, 0): 0.6, (1, 0): 0.2, (0, 1): 0.2}),
    ),
    "balls in bins": (
        BallsInBinsSampling(3, 3),
        product({(1, 0, 0): 1 / 3, (0, 1, 0): 1 / 3, (0, 0, 1): 1 / 3}),
    ),
    "random allocation": (
        RandomAllocationSampling(2, 3),
        product({(1, 1, 0): 1 / 3, (1, 0, 1): 1 / 3, (0, 1, 1): 1 / 3}),
    ),
    "min sep": (BMinSepSampling(0.4, 3, 2, warm_start=False), product(min_sep(0.4, 3))),
}
DEPENDENT = {
    "fixed": (FixedBatchSampling(1, 3), fixed(3)),
    "truncated": (CyclicPoissonSampling(0.8, 3, 1), truncated(0.8, 3)),
}


def outputs(weighted, contribution):
    """The distribution of the sums of all steps, given patterns (own, other) with weights."""
    found = collections.Counter()
    for (own, other), p in weighted.items():
        for noise in itertools.product(NOISE, repeat=len(own)):
            sums = tuple(
                contribution * a + b + z for a, b, z in zip(own, other, noise, strict=True)
            )
            found[sums] += p * np.prod([NOISE[z] for z in noise])
    return found


def hockey_stick(p, q, epsilon):
    one, other = (
        sum(max(a[x] - np.exp(epsilon) * b[x], 0) for x in {*a, *b}) for a, b in ((p, q), (q, p))
    )
    return max(one, other)


def given(patterns, other):
    """Patterns of the attacked unit, given those of the other one."""
    own = {pair: p for pair, p in patterns.items() if pair[1] == other}
    total = sum(own.values())
    return {pair: p / total for pair, p in own.items()}


def divergences(patterns, absent, epsilon):
    """Of the attacked unit alone, of the run, and of the run given the other unit: the largest."""

    def divergence(weighted):
        return hockey_stick(outputs(weighted, 1), outputs(weighted, absent), epsilon)

    alone = collections.Counter()
    for (own, other), p in patterns.items():
        alone[own, (0,) * len(other)] += p
    known = max(divergence(given(patterns, other)) for other in {r for _, r in patterns})
    return divergence(alone), divergence(patterns), known


@pytest.mark.parametrize("name", INDEPENDENT)
def test_knowing_the_others_does_not_exceed_what_is_accounted_for(name):
    for epsilon in EPSILONS:
        alone, unknown, known = divergences(INDEPENDENT[name][1], 0, epsilon)
        assert known <= alone + 1e-12
        assert unknown <= known + 1e-12


def test_a_partition_that_is_known_says_no_more_than_the_group():
    """Two groups of equal size: the other's group tells that of the attacked unit."""
    in_group = {0: {(0, 0): 0.6, (1, 0): 0.4}, 1: {(0, 0): 0.6, (0, 1): 0.4}}
    for epsilon in EPSILONS:
        alone = []
        for group, own in in_group.items():
            others = in_group[1 - group]
            patterns = {(u, r): p * q for u, p in own.items() for r, q in others.items()}
            accounted, _, known = divergences(patterns, 0, epsilon)
            alone.append(accounted)
            assert known <= accounted + 1e-12
        assert alone[0] == pytest.approx(alone[1])  # the event is that of any group


@pytest.mark.parametrize("name", DEPENDENT)
def test_knowing_the_others_would_refute_an_honest_run(name):
    """A replaced unit contributes -1: these samplers are proven for units that are replaced."""
    alone, _, known = divergences(DEPENDENT[name][1], -1, 0.0)
    assert known > alone + 0.01


@pytest.mark.parametrize("name", [*INDEPENDENT, *DEPENDENT])
def test_the_enumerated_patterns_are_those_of_the_sampler(name):
    sampler, patterns = (INDEPENDENT | DEPENDENT)[name]
    seeds = 3_000
    counts = collections.Counter()
    for seed in range(seeds):
        used = np.zeros((2, sampler.iterations), int)
        for step, batch in enumerate(sampler.batch_iterator(2, seed)):
            used[batch, step] = 1
        counts[tuple(map(tuple, used.tolist()))] += 1
    assert counts.keys() <= patterns.keys()
    expected = seeds * np.array(list(patterns.values()))
    observed = [counts[pair] for pair in patterns]
    assert stats.chisquare(observed, expected * sum(observed) / expected.sum()).pvalue > 1e-4


N = 100
USER = {"unit": "user", "examples_per_user_per_batch": 1}
SPECIAL = {"noise_multiplier": 1.0, "neighboring_relation": "REPLACE_SPECIAL"}
CONFIGS = [
    (DPSGDConfig.default(N, 50, 4, noise_multiplier=1.0), True),
    (DPSGDConfig.default(N, 50, 4, noise_multiplier=1.0, **USER), True),
    (DPSGDConfig.default(N, 50, 4, noise_multiplier=1.0, sampling="balls_in_bins"), True),
    (DPSGDConfig.default(N, 50, 4, noise_multiplier=1.0, sampling="random_allocation"), True),
    (BandMFConfig(4, 2.0, (1.0, 0.5), num_examples=N, **SPECIAL), True),
    (BLTConfig(N, 25, 4, 4, (0.75, 0.25), (0.25, 0.125), noise_multiplier=1.0), True),
    (DPSGDConfig.default(N, 50, 4, truncated_batch_size=60, **SPECIAL), False),
    (
        DPSGDConfig.default(
            N, 50, 4, noise_multiplier=1.0, sampling="fixed", neighboring_relation="REPLACE_ONE"
        ),
        False,
    ),
]


@pytest.mark.parametrize(("config", "independent"), CONFIGS)
def test_which_plans_let_the_attacker_know_the_others(config, independent):
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    assert units_are_independent(plan) == independent


def test_truncated_minimum_separation_is_left_out(monkeypatch):
    plan = CONFIGS[0][0].make(secrets=PlanSecrets.for_tests(0))
    for limit, independent in ((None, True), (3, False)):
        sampler = BMinSepSampling(0.1, 4, 2, truncated_batch_size=limit)
        monkeypatch.setitem(vars(plan), "batch_selection_strategy", sampler)
        assert units_are_independent(plan) == independent
