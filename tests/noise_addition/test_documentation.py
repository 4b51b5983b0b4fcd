"""The code blocks of docs/noise.md run as printed."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "noise.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
RESULTS = [
    ("updates", lambda x: x["w"].shape == (4, 2) and np.all(np.isfinite(x["w"]))),
    ("noised", lambda x: np.all(np.asarray(x) != 0)),
    ("state", lambda x: jax.tree.leaves(x.buffers)[0].shape[-1] == 1024),
    ("rho", lambda x: abs(x - 1 / (2 * 1.1**2)) < 1e-4),
]


@pytest.mark.parametrize("block, result", list(zip(BLOCKS, RESULTS, strict=True)))
def test_block_runs(block, result):
    names = {}
    exec(block, names)
    name, holds = result
    assert holds(names[name])
