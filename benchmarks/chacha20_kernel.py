"""Times the ChaCha20 kernel on a GPU for several tile sizes, for random bits and for noise.

python benchmarks/chacha20_kernel.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import noise

from bevel.noise_addition import chacha20_kernel

TILES = ((128, 4), (256, 4), (256, 8), (512, 4), (512, 8), (1024, 8))

if __name__ == "__main__":
    size = noise.SIZES["full"]
    for tile, warps in TILES:
        chacha20_kernel.TILE, chacha20_kernel.WARPS = tile, warps
        jax.clear_caches()  # otherwise the kernel would not be traced again
        for name in ("bits", "gaussian"):
            rows = noise.measure(noise.single_leaf_cases(name, size), size, steps=10)
            ms = {row.get("generator", "copy"): row.get("ms") for row in rows}
            print(f"tile {tile}, {warps} warps, {name}: {ms}", flush=True)
