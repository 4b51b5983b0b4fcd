"""Keyed permutations: a random order of `range(size)`, any part of which is computed directly."""

import dataclasses
import math

import numpy as np

from bevel.batch_selection.siphash import siphash
from bevel.errors import FixArgumentsError

# float64 and the hashed words hold every number up to this one.
LARGEST_SIZE = 2**53
# Up to this size the order is sorted by hashes, so that all orders are equally likely.
SORTED_SIZE = 4096
LEAST_ROUNDS = 10
# What the best known attack may gain from a whole order, one over this.
RESISTANCE = 10**12
# Up to this base, hashing every value of a digit is faster than hashing those of a few positions.
_SMALL_BASE = 1024
# The number of the round is above the bits of a digit.
_ROUND_SHIFT = np.uint64(56)


@dataclasses.dataclass(frozen=True)
class KeyedPermutation:
    """A permutation of `range(size)` that looks random to anyone without the 16-byte key.

    Up to 4096 elements, it is the order of their hashes. Above, it is a Feistel network, as in
    format-preserving encryption (NIST SP 800-38G): an element is written as two digits, and each
    round adds a hash of one digit to the other, modulo its base. The bases are close to the square
    root of `size`. Their product may exceed `size` a little: results outside the range are permuted
    again until they are inside (cycle walking), which keeps the map a bijection. One base is even,
    so that odd permutations occur as often as even ones.

    Small networks need more rounds: see `rounds`. There are 20 for 4097 elements, 14 for a million,
    and ten from 1e12 on.

    Cost: time and memory are proportional to the number of positions, for any `size`. A position
    takes about 0.5 microseconds, and less when there are more positions than values of a digit,
    because each value is then hashed once.

    What is assumed: SipHash with a secret key behaves like random functions, and a Feistel network
    of so many random functions like a random permutation (docs/batch_selection.md).
    """

    size: int
    key: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        if self.size > LARGEST_SIZE:
            raise FixArgumentsError(
                f"{self.size} examples: samplers count up to 2**53. Sample groups of examples."
            )

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the elements at these positions, as int64. Every position is in the range."""
        positions = np.asarray(positions, np.int64)
        if self.size <= SORTED_SIZE:
            return self._sorted()[positions]
        high, low = self._bases
        table = None
        if high <= _SMALL_BASE or high < len(positions):
            table = self._hashes(np.arange(rounds(low))[:, None], np.arange(high))
        elements = self._feistel(positions, table)
        while (outside := np.flatnonzero(elements >= self.size)).size:
            elements[outside] = self._feistel(elements[outside], table)
        return elements

    @property
    def _bases(self) -> tuple[int, int]:
        """The bases of the two digits. The first one is even. Their product is at least `size`."""
        high = math.isqrt(self.size - 1) + 1
        high += high % 2
        return high, -(-self.size // high)

    def _sorted(self) -> np.ndarray:
        return np.argsort(siphash(np.arange(self.size, dtype=np.uint64), self.key), kind="stable")

    def _feistel(self, elements: np.ndarray, table: np.ndarray | None) -> np.ndarray:
        """A permutation of the numbers below the product of the bases."""
        digits = list(np.divmod(elements, self._bases[1]))
        for number in range(rounds(self._bases[1])):
            changed, read = number % 2, digits[1 - number % 2]
            hashes = self._hashes(number, read) if table is None else table[number][read]
            base = self._bases[changed]
            digits[changed] = (digits[changed] + (hashes % np.uint64(base)).view(np.int64)) % base
        return digits[0] * self._bases[1] + digits[1]

    def _hashes(self, number: int | np.ndarray, digit: np.ndarray) -> np.ndarray:
        words = np.asarray(number, np.uint64) << _ROUND_SHIFT | digit.astype(np.uint64)
        return siphash(words, self.key)


def rounds(base: int) -> int:
    """The number of rounds of a network whose smaller digit has this base.

    The best known attack compares the differences of two elements with those of their positions
    (Patarin 2001; Bellare, Hoang and Tessaro 2016, who break formats with small domains by it).
    From a whole order, it gains `base ** (3 - rounds / 2)`, and the rounds make this at most 1e-12.
    """
    number = LEAST_ROUNDS
    while max(2, base) ** (number // 2 - 3) < RESISTANCE:
        number += 2
    return number
