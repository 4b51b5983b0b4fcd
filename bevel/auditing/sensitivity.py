"""`check_sensitivity`: removes single units from batches, and measures how far the sum moves.

The noise of a plan is made for a bound on what one unit contributes to the clipped sum. Canaries
test this bound with gradients of their own. This check tests it with the loss and the data that you
train with, so everything between them takes part: norm rules, clipping, microbatches, the sum over
the mesh, views, users. It runs the clipped sum of the trainer itself, on its mesh and with its
padded batch size. Nothing is random but the choice of examples, and no noise is added.

A unit i must not move the sum further than its bound, whatever the other units are:
|sum(batch) - sum(batch without i)| <= bound. A wrong norm, a parameter that is not clipped, a sum
that counts devices twice, users or views that are clipped one by one, and losses that couple
examples all break this inequality.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.auditing.sensitivity_result import SensitivityResult, SumMovement
from bevel.batch_selection import ExamplesByUser
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan
from bevel.training import Trainer
from bevel.training.data import DataSource, rows, source_of
from bevel.training.state import TrainingState, path_text

PyTree = Any
_LARGE = 1000.0  # the factor of large inputs
_LONGER = 16.0  # scaled gradients are longer than the clip norm by about this factor
_SUBTRACTION = 1e-5  # relative: rounding of the difference and its norm


def check_sensitivity(
    trainer: Trainer,
    dataset: Any,
    params: PyTree,
    *,
    examples: int = 4,
    seed: int = 0,
    model_state: PyTree = None,
    user_ids: np.ndarray | None = None,
) -> SensitivityResult:
    """Measures how far the clipped sum moves if one example, or user, is removed or replaced.

    | case                    | what it is for                                                 |
    | ----------------------- | -------------------------------------------------------------- |
    | examples as they are    | coupled examples, sums that count devices twice                |
    | longer gradients        | norms and clipping: the loss is multiplied until all are clipped |
    | large inputs            | the same, and overflow: real numbers are multiplied by 1000    |
    | one record, repeated    | sums whose terms all point the same way                        |
    | one label               | the same, with different inputs                                |
    | a record of NaN         | must contribute nothing, and leave the others alone            |
    | replaced                | one unit is replaced by one with large inputs                  |

    The result is not private: it shows gradients of single examples.

    Cost: about 40 clipped sums of one padded batch, and the compilation of two programs.

    Args:
      trainer, dataset, params: as for `Trainer.fit`. At initial parameters, gradients of some
        parameters may be zero. Pass trained parameters to check these too.
      examples: units in a batch, at least 2. The other rows of the padded batch are padding. The
        bound on rounding grows with it.
      seed: of the choice of units and of their rows in the batch.
      model_state, user_ids: as for `Trainer.fit`.
    """
    plan = trainer.plan
    if not math.isfinite(plan.l2_norm_bound):
        raise FixArgumentsError(
            "the plan does not clip (l2_clip_norm is inf), so nothing bounds what one "
            f"{plan.unit.name} contributes: check a plan with a finite l2_clip_norm."
        )
    source = source_of(dataset)
    drawn = _Units.drawn(trainer, source, user_ids, whole_number("examples", examples, 2), seed)
    state = trainer.init(params, model_state=model_state)
    plain = _ClippedSum(trainer, state)
    norms = plain(drawn.batch)[1]
    factor, unclipped = _factor(norms, float(plan.clip_norm(state.noise_state)))
    longer = _ClippedSum(_with_loss_times(trainer, factor), state)
    movements = [
        plain.movement("examples as they are", drawn),
        longer.movement("longer gradients", drawn),
        longer.movement("one record, repeated", drawn.repeated()),
    ]
    skipped = list(unclipped)
    if drawn.has(np.integer):
        movements.append(longer.movement("one label", drawn.with_one_label()))
    if drawn.has(np.floating):
        large = drawn.times(_LARGE)
        movements += [
            plain.movement("large inputs", large),
            longer.movement("a record of NaN", drawn.with_nan()),
            longer.replacement("replaced by large inputs", drawn, large),
        ]
    else:
        skipped.append("large inputs and NaN: the data has no real numbers")
    rounding = 2 * plain.step.rounding_bound(drawn.count) / plan.l2_norm_bound + _SUBTRACTION
    return SensitivityResult(
        plan.l2_norm_bound, rounding, tuple(movements), tuple(skipped), plan.unit.name
    )


def _factor(norms: np.ndarray, clip_norm: float) -> tuple[float, tuple[str, ...]]:
    """The factor of the loss that makes all gradients longer than the clip norm."""
    usable = norms[np.isfinite(norms) & (norms > 0)]
    if not len(usable):
        return 1.0, ("clipping: all gradients are zero at these parameters, or not finite",)
    # A power of two, so that scaling adds no rounding.
    return 2.0 ** math.ceil(math.log2(max(1.0, _LONGER * clip_norm / float(usable.min())))), ()


def _with_loss_times(trainer: Trainer, factor: float) -> Trainer:
    loss_fn: Any = trainer.loss_fn

    def scaled(*arguments: Any) -> tuple[jax.Array, Any]:
        loss, aux = loss_fn(*arguments)
        return loss * jnp.asarray(factor, loss.dtype), aux

    changed: Any = scaled
    return dataclasses.replace(
        trainer, config=trainer.plan, performance_flags=None, loss_fn=changed
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Units:
    """A few units in the rows of a padded batch. Removing one makes its row padding."""

    data: PyTree  # NumPy arrays with one row for each unit
    missing: np.ndarray | None  # for users: which of their records are missing
    places: np.ndarray  # the row of each unit in the padded batch
    size: int
    trainer: Trainer

    @classmethod
    def drawn(
        cls,
        trainer: Trainer,
        source: DataSource,
        user_ids: np.ndarray | None,
        count: int,
        seed: int,
    ) -> "_Units":
        rng = np.random.default_rng(seed)
        size = trainer.sizes(1).sizes[-1]
        indices = _indices(trainer.plan, source, user_ids, min(count, size), rng)
        if len(indices) < 2:
            raise FixArgumentsError(
                f"the data has {len(indices)} {trainer.plan.unit.name}s and batches have {size} "
                "rows: two are needed, so that one can be removed."
            )
        missing = indices < 0 if indices.ndim == 2 else None
        places = np.sort(rng.choice(size, len(indices), replace=False))
        return cls(rows(source, indices), missing, places, size, trainer)

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def batch(self) -> tuple[PyTree, Any, jax.Array]:
        """The padded batch on the mesh: data, mask of missing records, mask of padding."""
        return self.without(None)

    def without(self, unit: int | None) -> tuple[PyTree, Any, jax.Array]:
        kept = np.delete(np.arange(self.count), [] if unit is None else [unit])

        def placed(x: np.ndarray, fill: Any = 0) -> jax.Array:
            dtype = jax.dtypes.canonicalize_dtype(x.dtype)
            full = np.full((self.size, *x.shape[1:]), fill, dtype)
            full[self.places[kept]] = x[kept]
            return jax.device_put(full, self.trainer.layout.sharding)

        missing = None if self.missing is None else placed(self.missing, True)
        is_padding = placed(np.zeros(self.count, bool), True)
        return jax.tree.map(placed, self.data), missing, is_padding

    def has(self, kind: type) -> bool:
        return any(np.issubdtype(x.dtype, kind) for x in jax.tree.leaves(self.data))

    def _changed(self, kind: type, change: Callable[[np.ndarray], np.ndarray]) -> "_Units":
        data = jax.tree.map(
            lambda x: change(x).astype(x.dtype) if np.issubdtype(x.dtype, kind) else x, self.data
        )
        return dataclasses.replace(self, data=data)

    def times(self, factor: float) -> "_Units":
        return self._changed(np.floating, lambda x: x * factor)

    def repeated(self) -> "_Units":
        missing = None if self.missing is None else np.repeat(self.missing[:1], self.count, axis=0)
        changed = self._changed(np.generic, lambda x: np.repeat(x[:1], self.count, axis=0))
        return dataclasses.replace(changed, missing=missing)

    def with_one_label(self) -> "_Units":
        return self._changed(np.integer, lambda x: np.broadcast_to(x[:1], x.shape))

    def with_nan(self) -> "_Units":
        def change(x: np.ndarray) -> np.ndarray:
            return np.concatenate([np.full_like(x[:1], np.nan), x[1:]])

        return self._changed(np.floating, change)

    def with_unit_of(self, other: "_Units", unit: int) -> "_Units":
        def change(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.concatenate([x[:unit], y[unit : unit + 1], x[unit + 1 :]])

        return dataclasses.replace(self, data=jax.tree.map(change, self.data, other.data))


def _indices(
    plan: DPExecutionPlan,
    source: DataSource,
    user_ids: np.ndarray | None,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The records of a few random units: (units,), or (users, records) with -1 for none."""
    if plan.unit.name != "user":
        return rng.choice(len(source), min(count, len(source)), replace=False)
    if user_ids is None or len(user_ids) != len(source):
        raise FixArgumentsError(
            f"the plan protects users: pass user_ids, one for each of {len(source)} records."
        )
    users = ExamplesByUser.of(user_ids)
    strategy: Any = plan.batch_selection_strategy
    chosen = rng.choice(len(users), min(count, len(users)), replace=False)
    counts = users.counts(chosen)[:, None]
    places = np.arange(strategy.examples_per_user_per_batch)[None]
    found = users.examples_at(chosen, np.minimum(places, counts - 1))
    return np.where(places < counts, found, -1)


class _ClippedSum:
    """The clipped sum of a trainer, as its step computes it."""

    def __init__(self, trainer: Trainer, state: TrainingState) -> None:
        self.step, self.state = trainer.step, state
        self.groups = _group_bounds(trainer.plan)
        self._clip = jax.jit(self.step.clip)
        self._distances = jax.jit(_distances)

    def __call__(self, batch: tuple[PyTree, Any, jax.Array]) -> tuple[PyTree, np.ndarray]:
        """The sum, and the norms of the units before clipping."""
        data, missing, is_padding = batch
        sums, aux = self._clip(self.state, (data, missing), is_padding, jax.random.key(0))
        return sums, np.asarray(aux.grad_norms, np.float64)[~np.asarray(is_padding)]

    def movement(self, case: str, units: _Units) -> SumMovement:
        """The largest movement of the sum if one unit is removed."""
        whole = self(units.batch)[0]
        others = (self(units.without(unit))[0] for unit in range(units.count))
        return self._largest(case, whole, others, 1.0)

    def replacement(self, case: str, units: _Units, by: _Units) -> SumMovement:
        """The largest movement of the sum if one unit is replaced by another one."""
        whole = self(units.batch)[0]
        others = (self(units.with_unit_of(by, unit).batch)[0] for unit in range(units.count))
        return self._largest(case, whole, others, 2.0)

    def _largest(
        self, case: str, whole: PyTree, others: Iterator[PyTree], allowed: float
    ) -> SumMovement:
        found = []
        for other in others:
            distances = {
                path_text(path): float(x)
                for path, x in jax.tree_util.tree_leaves_with_path(self._distances(whole, other))
            }
            for group, (bound, belongs) in self.groups.items():
                own = {path: x for path, x in distances.items() if belongs(path)}
                moved = math.sqrt(sum(x * x for x in own.values())) / (allowed * bound)
                where = max(own, key=lambda path: own[path] if own[path] >= 0 else math.inf)
                found.append(SumMovement(case, moved if moved >= 0 else math.inf, where, group))
        return max(found, key=lambda movement: movement.moved)


def _distances(one: PyTree, other: PyTree) -> PyTree:
    """The L2 distance of each leaf, NaN if one is not finite."""

    def distance(a: jax.Array, b: jax.Array) -> jax.Array:
        difference = a.astype(jnp.float32) - b.astype(jnp.float32)
        largest = jnp.max(jnp.abs(difference))
        scaled = difference / jnp.where(largest > 0, largest, 1)
        return largest * jnp.sqrt(jnp.sum(scaled * scaled))

    return jax.tree.map(distance, one, other)


def _group_bounds(plan: DPExecutionPlan) -> dict[str, tuple[float, Callable[[str], bool]]]:
    """The parts of the sum that have a bound of their own: the bound, and the paths of the part."""
    if plan.counting is None:
        return {"the gradients": (plan.l2_norm_bound, lambda path: True)}
    gradient = 1 / plan.clip.normalize_by
    count = math.sqrt(plan.l2_norm_bound**2 - gradient**2)
    return {
        "gradients and count": (plan.l2_norm_bound, lambda path: True),
        "the gradients": (gradient, lambda path: path.startswith("gradient")),
        "the count of unclipped gradients": (count, lambda path: path == "unclipped"),
    }
