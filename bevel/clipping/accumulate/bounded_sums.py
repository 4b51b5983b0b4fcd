"""Bounds what a second pass sums by what it measured itself, and not by what the first pass found.

A second pass recomputes values. Another partitioning, another fusion or a kernel that is not
deterministic may give it other gradients than those whose norms the coefficients came from. It
therefore measures the gradients that it sums, and its sums are returned only if no example's
gradient is longer than the first pass found it. Otherwise it runs again: with smaller coefficients
for the examples that were too long, and without those that are too long once more.

Per example and clip group, let H bound the norm of what is held or materialised, and U1 and U2 that
of what is recomputed, in the first and in the second pass. The coefficient c was chosen so that
c sqrt(H^2 + U1^2) is at most the clip norm C. The sums are returned only if each example is
excluded from them, or has s U2 <= U1 for the s <= 1 that its coefficient was multiplied by. Its
contribution is then at most c sqrt(H^2 + s^2 U2^2) <= C; without the second part it is c H <= C.
An example is left out because of its own norm alone, so no example decides about another.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.accumulate.coefficients import tree_norm
from bevel.clipping.accumulate.low_memory import SumsAndNorms
from bevel.clipping.norms.registry import Norm
from bevel.sharding.types import as_varying, on_all_shards, varying_axes, zeros_of_type

# An example that was too long is shortened by this much more, so that the next run of a pass that
# is not deterministic finds it short enough.
SHORTENED = 1 - 2.0**-7


def rounding_of_bounds(leaves: int) -> float:
    """Bounds the relative error of comparing two bounds, each the norm of a tree of `leaves`.

    Its terms: the sums over leaves and devices in either bound, their roots and slacks
    (`coefficients.tree_norm`), and the coefficient times s.
    """
    return precision.rounding_growth(2 * (leaves + jax.device_count()) + 48)


@dataclasses.dataclass(frozen=True)
class BoundedSums:
    """Runs a second pass until no example is longer than the first pass found it."""

    # (arrays, coefficients of each group, examples that count) -> sums and norms by leaf
    second_pass: Callable[[Any, list[Any], Any], SumsAndNorms]
    groups: Mapping[int, int]  # the clip group of each leaf
    batch_axes: Sequence[str]

    def sums(
        self, arrays: Any, factors: list[Any], keep: Any, first: Mapping[int, Norm]
    ) -> dict[int, Any]:
        """The weighted sums by leaf. `first` are the norms that the first pass found.

        `arrays` are the values that the second pass takes. A derivative is that of a single run.
        """

        @jax.custom_jvp
        def bounded(arrays: Any, factors: Any, keep: Any, first: Any) -> dict[int, Any]:
            return self._run_until_bounded(arrays, factors, keep, first)

        @bounded.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            run = lambda arrays, factors: self.second_pass(arrays, factors, primals[2])[0]  # noqa: E731
            _, derivative = jax.jvp(run, primals[:2], tangents[:2])
            return bounded(*primals), derivative

        return bounded(arrays, factors, keep, dict(first))

    def _run_until_bounded(
        self, arrays: Any, factors: list[Any], keep: Any, first: Mapping[int, Norm]
    ) -> dict[int, Any]:
        rounding = rounding_of_bounds(len(first))
        limits = {g: bound * (1 - rounding) for g, bound in self._bounds(first).items()}

        def run(state: Any) -> Any:
            _, attempt, scales, keep, _ = state
            weights = [f * scales[g] if g in scales else f for g, f in enumerate(factors)]
            sums, norms = self.second_pass(arrays, weights, keep)
            too_long, excluded = jnp.zeros_like(keep), jnp.zeros_like(keep)
            for g, bound in self._bounds(norms).items():
                # Where the first pass found no finite norm, the caller has decided what to do.
                over = ~(scales[g] * bound <= limits[g]) & jnp.isfinite(limits[g]) & keep
                finite = jnp.isfinite(bound)
                too_long |= over
                excluded |= over & ((attempt > 0) | ~finite)
                # A coefficient that is not finite would survive the exclusion.
                shorter = jnp.where(finite, limits[g] / bound * SHORTENED, 0)
                scales[g] = jnp.where(over, shorter, scales[g])
            return ~on_all_shards(~jnp.any(too_long)), attempt + 1, scales, keep & ~excluded, sums

        start = (
            jnp.array(True),
            jnp.zeros((), jnp.int32),
            {g: jnp.ones_like(limit) for g, limit in limits.items()},
            keep,
        )
        types = jax.eval_shape(lambda *state: run((*state, None)), *start)
        zeros = jax.tree.map(zeros_of_type, types[-1])
        # The first run is in the loop too, so the pass is compiled once. Outside of a loop, its
        # loops would share their initial zeros with those of the first pass, and the compiler would
        # hold a copy of what they become.
        typed = jax.tree.map(lambda x, t: as_varying(x, varying_axes(t)), start, types[:-1])
        return jax.lax.while_loop(lambda state: state[0], run, (*typed, zeros))[-1]

    def _bounds(self, norms: Mapping[int, Norm]) -> dict[int, Any]:
        """By group, the bounds (B,) on the norms of all leaves that are recomputed."""
        members: dict[int, list[Norm]] = {}
        for leaf, norm in norms.items():
            members.setdefault(self.groups[leaf], []).append(norm)
        return {g: tree_norm(own, self.batch_axes).upper for g, own in members.items()}
