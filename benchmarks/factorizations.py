"""Measures how long factorizations take to optimise, and how close they come to the optimum.

python benchmarks/factorizations.py

The targets on two cores are a banded Toeplitz strategy for 1e4 steps in under 20 s, and a BLT for
1e6 steps in under 30 s and within 1% of the optimal factor.
"""

import time

import numpy as np

from bevel.matrix_factorization import buffered_toeplitz, choose_mechanism, toeplitz


def timed(name, make):
    wall, cpu = time.perf_counter(), time.process_time()
    result = make()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:<48}{wall:>8.2f} s{cpu:>8.2f} s of CPU", end="  ")
    return result


def banded(n, bands):
    name = f"banded Toeplitz, n={n:.0e}, {bands} bands"
    coefs = timed(name, lambda: toeplitz.optimize_banded_toeplitz(n, bands))
    print(f"loss {toeplitz.loss(coefs, n):.6g}")


def blt(n):
    strategy = timed(f"BLT, n={n:.0e}", lambda: buffered_toeplitz.optimize(n=n))
    optimum = np.sum(toeplitz.optimal_max_error_strategy_coefs(n) ** 2) ** 2
    excess = buffered_toeplitz.max_loss(strategy, n) / optimum - 1
    print(f"{len(strategy.buf_decay)} buffers, {excess:.2%} above the optimal factor")


def choose(n):
    choice = timed(
        f"choose_mechanism, n={n:.0e}, 8 copies",
        lambda: choose_mechanism(n, 4, 32, params_per_device=1),
    )
    print(f"{choice.chosen.name}, {choice.chosen.detail}")


if __name__ == "__main__":
    for bands in (16, 64, 1000):
        banded(10_000, bands)
    for steps in (10_000, 1_000_000):
        blt(steps)
    choose(1000)
