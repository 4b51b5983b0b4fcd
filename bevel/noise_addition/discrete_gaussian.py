"""The discrete Gaussian, sampled exactly: integers only, and no logarithm or exponential.

P[x] is proportional to exp(-x**2 / (2 sigma**2)) over all integers x, for a whole number sigma.

Write |x| = k sigma + j with 0 <= j < sigma, and u = j / sigma. Then

    exp(-x**2 / (2 sigma**2)) = exp(-k**2 / 2) * exp(-u (2 k + u) / 2)

and rejection takes the factors one after the other (Karney 2016, algorithm D, whose restriction to
whole sigma and mean 0 leaves no real numbers; the coins are those of Canonne, Kamath and Steinke
2020, algorithm 1):

    COUNT   k grows by one for every success of a coin exp(-1/2), until the first failure
    SHRINK  k (k - 1) coins exp(-1/2) must succeed: k has now the weight exp(-k**2 / 2)
    PLACE   a sign and j, uniform; a negative zero starts again
    ACCEPT  k + 1 coins exp(-u (2 k + u) / (2 k + 2)) must succeed

A failure in SHRINK or ACCEPT starts again. A coin exp(-a / b), for 0 <= a <= b, is a run of coins
a / (b i) for i = 1, 2, ... until the first failure: it succeeds if that i is odd. And a coin
a / (b i) asks whether a uniform integer below b i is below a. So each step of a sample takes one
uniform integer below some n, from 64 random bits: bits from the largest multiple of n on are no
use, and the step is taken again with the next ones. Nothing is rounded and no loop is cut short.
"""

import dataclasses
import enum
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.noise_addition import chacha20
from bevel.noise_addition.offsets import Wide, flat_offsets
from bevel.sharding import types
from bevel.sharding.shard_generation import Shard

# n = 2 (k + 1) i sigma**2 fits 64 bits while (k + 1) i < 2**11, and a sample that reached this
# would have met an event of probability below 2**-400.
LARGEST_SIGMA = 2**26


class _Stage(enum.IntEnum):
    COUNT = 0
    SHRINK = 1
    PLACE = 2
    ACCEPT = 3
    DONE = 4


class _Sample(NamedTuple):
    """A sample in the making. All are uint32."""

    stage: jax.Array
    k: jax.Array
    j: jax.Array
    sign: jax.Array  # 1 for a negative number
    coins: jax.Array  # that must still succeed
    run: jax.Array  # the i of the current coin


class _Lanes(NamedTuple):
    """Samples in the making, one in each lane. A lane whose sample is done takes up another."""

    element: jax.Array  # of the piece, in its own row-major order
    block: jax.Array  # next to be read of the element's stream
    sample: _Sample
    done: jax.Array  # int64: all samples of the piece


@dataclasses.dataclass(frozen=True)
class DiscreteGaussians:
    """Makes the samples of one piece of a leaf, int64.

    Every element has a stream of its own, so a sample is a function of the leaf's key and of the
    element's offset: block t of the element with offset e has the number e and the nonce
    (t, DISCRETE). Shards run until all of their own samples are done, without communication.
    """

    sigma: int

    def __call__(self, words: jax.Array, piece: Shard) -> tuple[jax.Array]:
        size = math.prod(piece.shape)
        if not size:
            return (jnp.zeros(piece.shape, np.int64),)
        count = min(size, 2**12 if jax.default_backend() == "cpu" else 2**20)
        offsets = [x.ravel() for x in flat_offsets(piece)]
        axes = frozenset().union(*map(types.varying_axes, offsets))

        def number(value: int) -> jax.Array:
            return types.as_varying(jnp.full(count, value, np.uint32), axes)

        fresh = _Sample(*map(number, (_Stage.COUNT, 0, 0, 0, 0, 1)))
        done = types.as_varying(jnp.zeros(size, np.int64), axes)
        own = number(0) + jax.lax.iota(np.uint32, count)

        def advanced(lanes: _Lanes) -> _Lanes:
            element, block, sample, done = lanes
            here = jnp.minimum(element, np.uint32(size - 1))
            draws = _draws_of_block(words, (offsets[0][here], offsets[1][here]), block)
            sample, _ = jax.lax.scan(lambda s, bits: (self.next(s, bits), None), sample, draws)
            ready = sample.stage == _Stage.DONE
            place = jnp.where(ready, element, np.uint32(size))  # past the end: not written
            return _Lanes(
                element=jnp.where(ready, element + np.uint32(count), element),
                block=jnp.where(ready, np.uint32(0), block + np.uint32(1)),
                sample=jax.tree.map(lambda new, now: jnp.where(ready, new, now), fresh, sample),
                done=done.at[place].set(self.value(sample), mode="drop"),
            )

        lanes = jax.lax.while_loop(
            lambda lanes: jnp.any(lanes.element < np.uint32(size)),
            advanced,
            _Lanes(own, number(0), fresh, done),
        )
        return (lanes.done.reshape(piece.shape),)

    def value(self, sample: _Sample) -> jax.Array:
        sigma = jnp.asarray(self.sigma).astype(np.int64)
        size = sample.k.astype(np.int64) * sigma + sample.j.astype(np.int64)
        return jnp.where(sample.sign == 1, -size, size)

    def next(self, sample: _Sample, bits: jax.Array) -> _Sample:
        """One step of a sample, with 64 random bits."""
        stage, k, j, sign, coins, run = sample
        one, two = np.uint32(1), np.uint32(2)
        counting, placing, accepting = (
            stage == s for s in (_Stage.COUNT, _Stage.PLACE, _Stage.ACCEPT)
        )

        # The uniform integer below n.
        wide_k, wide_j, sigma = (jnp.asarray(x).astype(np.uint64) for x in (k, j, self.sigma))
        half_b = jnp.where(accepting, (wide_k + 1) * (sigma * sigma), np.uint64(1))
        n = 2 * jnp.where(placing, sigma, half_b * run.astype(np.uint64))
        uniform = bits % n
        # 2**64 and 2**64 - n leave the same remainder.
        usable = (bits <= ~((np.uint64(0) - n) % n)) & (stage != _Stage.DONE)

        # The coin: below a, its run goes on.
        a = jnp.where(accepting, wide_j * (2 * wide_k * sigma + wide_j), np.uint64(1))
        runs_on = ~placing & (uniform < a)
        heads = ~placing & ~runs_on & (run % two == one)
        tails = ~placing & ~runs_on & ~heads
        run = jnp.where(runs_on, run + one, one)

        # What follows from it.
        counted = counting & tails
        coins = jnp.where(counted, k * jnp.maximum(k, one) - k, coins)
        coins = jnp.where(heads & ~counting, coins - one, coins)
        passed = (coins == 0) & (counted | (heads & ~counting))
        after = jnp.where(accepting, np.uint32(_Stage.DONE), np.uint32(_Stage.PLACE))
        stage = jnp.where(passed, after, jnp.where(counted, np.uint32(_Stage.SHRINK), stage))
        k = jnp.where(counting & heads, k + one, k)
        # A place, in PLACE.
        stage = jnp.where(placing, np.uint32(_Stage.ACCEPT), stage)
        coins = jnp.where(placing, k + one, coins)
        sign = jnp.where(placing, (uniform % 2).astype(np.uint32), sign)
        j = jnp.where(placing, (uniform // 2).astype(np.uint32), j)
        minus_zero = placing & (sign == one) & (j == 0) & (k == 0)
        # Or a new start.
        again = minus_zero | (tails & ~counting)
        stage = jnp.where(again, np.uint32(_Stage.COUNT), stage)
        k = jnp.where(again, np.uint32(0), k)
        moved = _Sample(stage, k, j, sign, coins, run)
        return jax.tree.map(lambda new, old: jnp.where(usable, new, old), moved, sample)


def _draws_of_block(words: jax.Array, counter: Wide, t: jax.Array) -> jax.Array:
    """Block t of every element: 8 draws of 64 bits."""
    block = chacha20.blocks(words, counter, chacha20.BlockPurpose.DISCRETE, t)
    low, high = (jnp.stack(block[i::2]).astype(np.uint64) for i in (0, 1))
    return (high << np.uint64(32)) | low
