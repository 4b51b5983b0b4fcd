"""Sample Poisson batches for any step, pad them to few shapes, and split them over processes.

python examples/batch_selection.py
"""

import secrets

import numpy as np

import bevel

N, STEPS = 1_000_000_000, 1000
seed = secrets.randbits(128)  # keep it secret: it determines the batches

sampler = bevel.batch_selection.CyclicPoissonSampling.with_expected_batch_size(1024, N, STEPS)
sizes = bevel.batch_selection.padded_sizes(1024, multiple=64)
print("padded sizes:", sizes.sizes)

for step in (0, 999, 500):  # in any order: batches do not depend on earlier steps
    batch = sampler.batch(step, N, seed)
    rows = sizes.pad(batch)
    print(f"step {step}: {len(batch)} examples in {len(rows)} rows, {(rows == -1).sum()} padding")

shares = [sampler.batch(7, N, seed, process_index=i, process_count=4) for i in range(4)]
batch = sampler.batch(7, N, seed)
print("examples in each of 4 processes:", [len(share) for share in shares])
assert np.array_equal(np.concatenate(shares), batch)

user_ids = np.random.default_rng(0).integers(1000, size=20_000)
users = bevel.batch_selection.UserSelectionStrategy(
    bevel.batch_selection.CyclicPoissonSampling(0.05, STEPS), examples_per_user_per_batch=4
)
print("users x examples:", users.batch(3, user_ids, seed).shape)

claim = sampler.proven_event(N)
print(f"accounted as {claim.function}, proven under {', '.join(claim.relations)}")
