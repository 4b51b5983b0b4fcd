"""Calibrate the noise to a privacy budget, and compute what a run costs.

python examples/accounting.py
"""

import bevel
from bevel.accounting import (
    MonteCarlo,
    calibrate_noise_multiplier,
    epsilon,
    epsilon_after_each_step,
    event_of,
    trade_off_curve,
)
from bevel.batch_selection import BallsInBinsSampling, CyclicPoissonSampling

N, STEPS, DELTA = 60_000, 2_000, 1e-5
sampler = CyclicPoissonSampling.with_expected_batch_size(1024, N, STEPS)


def event(noise, relation):
    return event_of(sampler, noise, num_examples=N, neighboring_relation=relation)


print("noise multiplier for epsilon 3:")
for relation in sampler.proven_event(N).relations:
    noise = calibrate_noise_multiplier(
        lambda noise, relation=relation: event(noise, relation),
        epsilon=3.0,
        delta=DELTA,
        neighboring_relation=relation,
    )
    cost = epsilon(event(noise, relation), delta=DELTA, neighboring_relation=relation)
    print(f"  {relation:18} {noise:.3f}  (epsilon {cost:.4f})")

add = {"neighboring_relation": "ADD_OR_REMOVE_ONE"}
curve = epsilon_after_each_step(
    lambda steps: bevel.accounting.dpsgd_event(1.3, steps, sampling_prob=1024 / N),
    STEPS,
    delta=DELTA,
    points=12,
    **add,
)
print("epsilon after 1, 500 and 2000 steps:", curve[[0, 499, 1999]].round(2))

_, tpr = trade_off_curve(event(1.3, "ADD_OR_REMOVE_ONE"), fpr=[1e-3, 1e-1], **add)
print("upper bounds on an attacker's TPR at FPR 0.1% and 10%:", tpr.round(3))

bins = BallsInBinsSampling(iterations=64, cycle_length=16)
bins_event = event_of(bins, 2.0, num_examples=N, strategy=[1.0, 0.5, 0.25], **add)
cost = epsilon(bins_event, delta=1e-3, monte_carlo=MonteCarlo(100_000, 1e-5, seed=0), **add)
print(f"balls in bins, correlated noise, Monte Carlo: epsilon {cost:.2f} at delta 1e-3")
