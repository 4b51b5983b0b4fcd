"""Which examples each step uses: Poisson batches of any step, in padded shapes, over processes.

python examples/batch_selection.py
"""

import secrets

import numpy as np

import bevel

N, STEPS = 1_000_000_000, 1000
seed = secrets.randbits(128)  # whoever knows it knows the batches: keep it secret

sampler = bevel.batch_selection.CyclicPoissonSampling.with_expected_batch_size(1024, N, STEPS)
sizes = bevel.batch_selection.padded_sizes(1024, multiple=64)
print("padded sizes:", sizes.sizes)

for step in (0, 999, 500):  # in any order: a step does not need the steps before it
    batch = sampler.batch(step, N, seed)
    rows = sizes.pad(batch)
    print(f"step {step}: {len(batch)} examples in {len(rows)} rows, {(rows == -1).sum()} padding")

shares = [sampler.batch(7, N, seed, process_index=i, process_count=4) for i in range(4)]
whole = sampler.batch(7, N, seed)
print("shares of 4 processes:", [len(share) for share in shares])
assert np.array_equal(np.concatenate(shares), whole)

user_ids = np.random.default_rng(0).integers(1000, size=20_000)
users = bevel.batch_selection.UserSelectionStrategy(
    bevel.batch_selection.CyclicPoissonSampling(0.05, STEPS), examples_per_user_per_batch=4
)
print("users x examples:", users.batch(3, user_ids, seed).shape)

claim = sampler.proven_event(N)
print(f"accounted as {claim.function}, proven under {', '.join(claim.relations)}")
