"""Exact samples of the discrete Gaussian, in integer arithmetic.

P[x] is proportional to exp(-x**2 / (2 sigma**2)) over all integers x, for an integer sigma.

Write |x| = k sigma + j with 0 <= j < sigma, and u = j / sigma. Then

    exp(-x**2 / (2 sigma**2)) = exp(-k**2 / 2) * exp(-u (2 k + u) / 2)

and rejection sampling handles one factor after the other (Karney 2016, algorithm D, which needs no
real numbers for integer sigma and mean 0; the coins, or Bernoulli trials, are those of Canonne,
Kamath and Steinke 2020, algorithm 1):

    COUNT   k is the number of successes of a coin exp(-1/2) before the first failure
    SHRINK  k (k - 1) coins exp(-1/2) must succeed; then k has the weight exp(-k**2 / 2)
    PLACE   draw a sign and j uniformly; a negative zero restarts the sample
    ACCEPT  k + 1 coins exp(-u (2 k + u) / (2 k + 2)) must succeed

A failure in SHRINK or ACCEPT restarts the sample. To toss a coin exp(-a / b), with 0 <= a <= b,
toss coins a / (b i) for i = 1, 2, ... until the first failure: the coin succeeds if that i is odd.
A coin a / (b i) succeeds if a uniform integer below b i is below a. So each step of a sample takes
one uniform integer below some n, from 64 random bits. If the bits are not below the largest
multiple of n, the step is repeated with the next bits. Nothing is rounded, no loop is truncated.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.noise_addition import chacha20
from bevel.noise_addition.flat_view import FlatView
from bevel.noise_addition.offsets import WordPair, flat_offsets
from bevel.sharding import types
from bevel.sharding.shard_generation import Shard

# n = 2 (k + 1) i sigma**2 fits in 64 bits while (k + 1) i < 2**11. The probability that a sample
# exceeds this is below 2**-400.
LARGEST_SIGMA = 2**26


class _Stage(enum.IntEnum):
    COUNT = 0
    SHRINK = 1
    PLACE = 2
    ACCEPT = 3
    DONE = 4


class _Sample(NamedTuple):
    """The state of one unfinished sample. All fields are uint32."""

    stage: jax.Array
    k: jax.Array
    j: jax.Array
    sign: jax.Array  # 1 for a negative number
    coins: jax.Array  # number of coins that must still succeed
    run: jax.Array  # the i of the current coin


class _Lanes(NamedTuple):
    """Samples in progress, one per lane. A lane that finishes a sample starts on another one."""

    element: jax.Array  # row-major index of the element in the shard
    block: jax.Array  # next block of the element's stream
    sample: _Sample
    done: jax.Array  # finished samples of the shard, int64


@dataclasses.dataclass(frozen=True)
class DiscreteGaussians:
    """Draws the samples of one shard of a leaf, as int64.

    Every element has its own stream, so a sample is a function of the leaf's key and the element's
    offset: block t of the element with offset e has the block number e and the nonce (t, DISCRETE).
    A shard runs until all of its samples are done, without communication.
    """

    sigma: int
    in_pieces: ClassVar[bool] = False

    def __call__(self, key_data: jax.Array, shard: Shard) -> tuple[jax.Array, ...]:
        offsets = [x.ravel() for x in flat_offsets(shard)]

        def counters(element: jax.Array) -> tuple[jax.Array, WordPair]:
            return key_data, (offsets[0][element], offsets[1][element])

        return (self._drawn(math.prod(shard.shape), counters).reshape(shard.shape),)

    def of_leaves(self, key_data: jax.Array, shards: Sequence[Shard]) -> tuple[jax.Array, ...]:
        """Draws the samples of several leaves in one loop; row k is the key data of leaf k."""
        view = FlatView(tuple(shards), width=1)

        def counters(element: jax.Array) -> tuple[jax.Array, WordPair]:
            leaf, offset = view.locate(element)
            words = jnp.take(key_data.T, leaf, axis=1, mode="clip")
            return words, (jnp.zeros_like(offset), offset)

        flat = self._drawn(view.num_rows, counters)
        return tuple(view.leaf(flat, number) for number in range(len(shards)))

    def _drawn(
        self, size: int, counters: Callable[[jax.Array], tuple[jax.Array, WordPair]]
    ) -> jax.Array:
        """Draws `size` samples. `counters` returns the key and the offset of some elements."""
        if not size:
            return jnp.zeros(0, np.int64)
        num_lanes = min(size, _most_lanes(size))
        _, one = jax.eval_shape(counters, jax.ShapeDtypeStruct((num_lanes,), np.uint32))
        axes = frozenset().union(*map(types.varying_axes, one))

        def full(value: int) -> jax.Array:
            return types.as_varying(jnp.full(num_lanes, value, np.uint32), axes)

        fresh = _Sample(*map(full, (_Stage.COUNT, 0, 0, 0, 0, 1)))
        done = types.as_varying(jnp.zeros(size, np.int64), axes)
        first_elements = full(0) + jax.lax.iota(np.uint32, num_lanes)

        def advance(lanes: _Lanes) -> _Lanes:
            element, block, sample, done = lanes
            key, counter = counters(jnp.minimum(element, np.uint32(size - 1)))
            draws = _draws_of_block(key, counter, block)
            sample, _ = jax.lax.scan(lambda s, bits: (self.next(s, bits), None), sample, draws)
            ready = sample.stage == _Stage.DONE
            target = jnp.where(ready, element, np.uint32(size))  # out of bounds: not written
            return _Lanes(
                element=jnp.where(ready, element + np.uint32(num_lanes), element),
                block=jnp.where(ready, np.uint32(0), block + np.uint32(1)),
                sample=jax.tree.map(lambda new, now: jnp.where(ready, new, now), fresh, sample),
                done=done.at[target].set(self.value(sample), mode="drop"),
            )

        lanes = jax.lax.while_loop(
            lambda lanes: jnp.any(lanes.element < np.uint32(size)),
            advance,
            _Lanes(first_elements, full(0), fresh, done),
        )
        return lanes.done

    def value(self, sample: _Sample) -> jax.Array:
        sigma = jnp.asarray(self.sigma).astype(np.int64)
        magnitude = sample.k.astype(np.int64) * sigma + sample.j.astype(np.int64)
        return jnp.where(sample.sign == 1, -magnitude, magnitude)

    def next(self, sample: _Sample, bits: jax.Array) -> _Sample:
        """Advances a sample by one step, with 64 random bits."""
        stage, k, j, sign, coins, run = sample
        one, two = np.uint32(1), np.uint32(2)
        counting, placing, accepting = (
            stage == s for s in (_Stage.COUNT, _Stage.PLACE, _Stage.ACCEPT)
        )

        # Draw a uniform integer below n.
        wide_k, wide_j, sigma = (jnp.asarray(x).astype(np.uint64) for x in (k, j, self.sigma))
        half_b = jnp.where(accepting, (wide_k + 1) * (sigma * sigma), np.uint64(1))
        n = 2 * jnp.where(placing, sigma, half_b * run.astype(np.uint64))
        uniform = bits % n
        # 2**64 and 2**64 - n have the same remainder modulo n.
        usable = (bits <= ~((np.uint64(0) - n) % n)) & (stage != _Stage.DONE)

        # Toss the coin: below a, its run continues.
        a = jnp.where(accepting, wide_j * (2 * wide_k * sigma + wide_j), np.uint64(1))
        run_continues = ~placing & (uniform < a)
        heads = ~placing & ~run_continues & (run % two == one)
        tails = ~placing & ~run_continues & ~heads
        run = jnp.where(run_continues, run + one, one)

        # Apply its outcome.
        counted = counting & tails
        coins = jnp.where(counted, k * jnp.maximum(k, one) - k, coins)
        coins = jnp.where(heads & ~counting, coins - one, coins)
        passed = (coins == 0) & (counted | (heads & ~counting))
        after = jnp.where(accepting, np.uint32(_Stage.DONE), np.uint32(_Stage.PLACE))
        stage = jnp.where(passed, after, jnp.where(counted, np.uint32(_Stage.SHRINK), stage))
        k = jnp.where(counting & heads, k + one, k)
        # In PLACE, set the sign and j.
        stage = jnp.where(placing, np.uint32(_Stage.ACCEPT), stage)
        coins = jnp.where(placing, k + one, coins)
        sign = jnp.where(placing, (uniform % 2).astype(np.uint32), sign)
        j = jnp.where(placing, (uniform // 2).astype(np.uint32), j)
        minus_zero = placing & (sign == one) & (j == 0) & (k == 0)
        # Restart a rejected sample.
        restart = minus_zero | (tails & ~counting)
        stage = jnp.where(restart, np.uint32(_Stage.COUNT), stage)
        k = jnp.where(restart, np.uint32(0), k)
        advanced = _Sample(stage, k, j, sign, coins, run)
        return jax.tree.map(lambda new, old: jnp.where(usable, new, old), advanced, sample)


def _most_lanes(size: int) -> int:
    """The number of samples in progress: few in a small leaf, because each takes 300 bytes."""
    if jax.default_backend() != "cpu":
        return 2**20
    return min(max(size // 128, 2**6), 2**12)


def _draws_of_block(key_data: jax.Array, counter: WordPair, t: jax.Array) -> jax.Array:
    """Returns block t of every element, as 8 draws of 64 bits."""
    block = chacha20.blocks(key_data, counter, chacha20.BlockPurpose.DISCRETE, t)
    low, high = (jnp.stack(block[i::2]).astype(np.uint64) for i in (0, 1))
    return (high << np.uint64(32)) | low
