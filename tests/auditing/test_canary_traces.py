"""Released arrays that show the canaries better than the guarantee allows are found."""

import numpy as np
import pytest

from bevel.auditing import gradient_canaries
from bevel.auditing.canary_traces import canary_traces

SHAPES = [(8,), (20, 100)]
PARAMS = {"b": np.zeros(SHAPES[0], np.float32), "w": np.zeros(SHAPES[1], np.float32)}
DELTA, PROMISED = 1e-5, 4.0


@pytest.fixture(name="canaries")
def fixture_canaries():
    return gradient_canaries(PARAMS, 1000, 2000, seed=0)


def sums(canaries):
    """The sum of the canaries that are held in, without noise."""
    found = np.zeros(SHAPES[1])
    own = canaries.held_in & (canaries.leaf == 1)
    found[tuple(canaries.index[own].T)] = 1
    return found


def traces(root, canaries, **arrays):
    (root / "released").mkdir()
    np.savez(root / "released" / "extra.npz", **arrays)
    return canary_traces(root, canaries, SHAPES, lambda bound: bound > PROMISED, DELTA)


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.01])
def test_sums_without_noise_are_found(tmp_path, canaries, scale, stack):
    bare = scale * sums(canaries)
    hidden = np.stack([np.zeros_like(bare), bare]) if stack else bare
    noise = np.random.default_rng(1).normal(size=SHAPES[1])
    found = traces(tmp_path, canaries, bare=hidden, noised=sums(canaries) + noise, other=np.ones(3))
    assert [trace.entry for trace in found] == ["bare"]
    assert "canaries apart, which shows epsilon" in found[0].what


def test_too_little_noise_is_found(tmp_path, canaries):
    noise = np.random.default_rng(1).normal(size=SHAPES[1])
    found = traces(tmp_path, canaries, half=sums(canaries) + 0.25 * noise)
    assert len(found) == 1


def test_what_says_nothing_is_not_a_trace(tmp_path, canaries):
    other = np.random.default_rng(2).normal(size=(30, *SHAPES[1]))
    whole = np.ones(SHAPES[1], np.int32)
    assert traces(tmp_path, canaries, other=other, whole=whole, equal=np.ones(SHAPES[1])) == ()
