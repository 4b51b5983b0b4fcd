"""The execution plan: sampler, clipping, noise and accounting of one run in one object."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from dp_accounting import DpEvent, NeighboringRelation

from bevel import noise_addition
from bevel.accounting import Budget, epsilon_after_each_step
from bevel.accounting import epsilon as epsilon_of
from bevel.batch_selection import (
    BatchSelectionStrategy,
    ExamplesByUser,
    PaddedSizes,
    UserSelectionStrategy,
)
from bevel.batch_selection.randomness import DRAW_VERSION
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import instance, positive_number, whole_number
from bevel.clipping import BoundedSensitivityCallable, clipped_grad
from bevel.errors import FixArgumentsError
from bevel.execution_plan.adaptive_clipping import AdaptiveNoiseState, UnclippedCount
from bevel.execution_plan.batch_sizes import sizes_for
from bevel.execution_plan.charges import PlannedCharge, planned_charge
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.fingerprint import fingerprint
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.performance import PerformanceFlags
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.execution_plan.privacy_unit import Unit

PyTree = Any
# The number of examples; for users, the user of each example.
Population: TypeAlias = int | np.ndarray | ExamplesByUser
# Options of `bevel.clipped_grad` that callers of `plan.clipped_grad` cannot set.
SET_BY_PLAN = {
    "l2_clip_norm",
    "rescale_to_unit_norm",
    "normalize_by",
    "keep_batch_dim",
    "microbatch_size",
    "nan_safe",
    "dtype",
    "grid_scale",
    "automatic_gamma",
    "spmd_axis_name",
}


@dataclasses.dataclass(frozen=True, eq=False)
class DPExecutionPlan:
    """The sampler, clipping, noise and event of one run, made from one config.

    Formal guarantee: suppose that the batches come from `batch_selection_strategy` with the plan's
    seed, and the sums from `clipped_grad`. Then, in real-number arithmetic, the outputs of
    `noise_addition_transform` over all steps satisfy `dp_event` for neighbours that differ in one
    `unit` under `neighboring_relation`. In floating point, two things are not covered: the rounding
    of the sums (`BoundedSensitivityCallable.rounding_bound`), and the bits of the noised result,
    from which an adversary can learn more than the event says (docs/guarantees.md). Plans do not
    offer exact arithmetic (`discrete_gaussian_privatizer` on an integer grid).

    All four follow from the config. Create plans by `config.make()`. One step is

        rows = plan.padded_sizes().pad(plan.batch(step, num_examples))
        clip = plan.clip_norm(noise_state)
        sums = plan.clipped_grad(loss, clip_norm=clip)(params, data[rows], is_padding_example=...)
        grads, noise_state = plan.noise_addition_transform.update(sums, noise_state)

    Attributes:
      mechanism: the sampler and the noise, and their event.
      clip: the clipping options.
      unit: the unit of privacy.
      expected_batch_size: the mean number of units in a batch, or None if it is not known.
      budget: the budget for which the noise was calibrated, if any.
      flags: options that do not change the guarantee.
      secrets: the noise key and the sampling seed.
    """

    mechanism: Mechanism
    clip: ClipOptions
    unit: Unit
    expected_batch_size: float | None
    budget: Budget | None = None
    flags: PerformanceFlags = dataclasses.field(default_factory=PerformanceFlags)
    secrets: PlanSecrets = dataclasses.field(default_factory=PlanSecrets.new, repr=False)
    noise_addition_transform: optax.GradientTransformationExtraArgs = dataclasses.field(
        init=False, repr=False
    )

    def __post_init__(self) -> None:
        parts = [Mechanism, ClipOptions, Unit, PerformanceFlags, PlanSecrets, Budget | None]
        names = ["mechanism", "clip", "unit", "flags", "secrets", "budget"]
        for name, kind in zip(names, parts, strict=True):
            instance(name, getattr(self, name), kind, "what the `make` method of a config passes")
        if self.expected_batch_size is not None:
            positive_number("expected_batch_size", self.expected_batch_size, "or None")
        self.unit.keep_batch_dim(self.flags.keep_batch_dim)
        object.__setattr__(self, "noise_addition_transform", self._noise())

    # Batches.

    @property
    def iterations(self) -> int:
        return self.mechanism.iterations

    @property
    def num_units(self) -> int | None:
        """The number of examples or users, or None if it is not known."""
        return self.mechanism.num_units

    @functools.cached_property
    def batch_selection_strategy(self) -> BatchSelectionStrategy | UserSelectionStrategy:
        """The sampler; a `UserSelectionStrategy` if the unit is the user."""
        return self.unit.selection(self.mechanism.sampler)

    def batch(
        self, step: int, population: Population, *, attempt: int = 0, **process: int
    ) -> np.ndarray:
        """Returns the indices of a step; for users (users, examples), -1 for missing examples.

        Args:
          population: the number of examples; for users, the users' ids or `ExamplesByUser`.
          attempt: the attempt in the ledger. Each attempt has other batches.
          process: `process_index` and `process_count`, for the part of one process.
        """
        self.check_population(population)
        seed = self.secrets.of_attempt(attempt).sampling_seed
        sampler: Any = self.batch_selection_strategy  # what it samples depends on the unit
        return sampler.batch(step, population, seed, **process)

    def batches(
        self, population: Population, *, first: int = 0, attempt: int = 0
    ) -> Iterator[np.ndarray]:
        """Iterates over the batches of steps `first`, `first + 1`, ..., as `batch` returns them.

        Samplers without random access, such as `BMinSepSampling`, replay the steps before `first`.
        """
        self.check_population(population)
        seed = self.secrets.of_attempt(attempt).sampling_seed
        sampler: Any = self.batch_selection_strategy
        if isinstance(self.mechanism.sampler, RandomAccessSampler):
            steps = range(first, self.iterations)
            return (sampler.batch(k, population, seed) for k in steps)
        replayed = sampler.batch_iterator(population, seed)
        return itertools.islice(replayed, first, None)

    def check_population(self, population: Population) -> None:
        """Raises unless the population has as many units as the plan."""
        if self.num_units is None:
            return
        users = self.unit.name == "user"
        given: Any = population
        count = len(ExamplesByUser.of(given)) if users else given
        if count != self.num_units:
            raise FixArgumentsError(
                f"the data set has {count} {self.unit.name}s, but the plan was made for "
                f"{self.num_units}, which its epsilon depends on: set num_examples={count}."
            )

    def padded_sizes(self, *, multiple: int = 1, count: int = 3) -> PaddedSizes:
        """Returns the sizes to pad batches to. They depend on the distribution of sizes only.

        Args:
          multiple: sizes are multiples of it. Pass the number of devices that share a batch.
        """
        if self.expected_batch_size is None:
            raise FixArgumentsError(
                "the expected batch size is not known: set num_examples in the config."
            )
        multiple = math.lcm(multiple, self.flags.microbatch_size or 1)
        return sizes_for(
            self.mechanism.sampler, self.expected_batch_size, self.num_units, multiple, count
        )

    # Clipping.

    @functools.cached_property
    def counting(self) -> UnclippedCount | None:
        """The adaptive clipping of this plan, or None if the clip norm is constant."""
        noise, size = self.mechanism.noise_multiplier, self.expected_batch_size
        if self.clip.adaptive is None or noise is None or size is None:
            return None
        return UnclippedCount(
            self.clip.adaptive,
            noise,
            size,
            self.clip.normalize_by,
            self.clip.rescale_to_unit_norm,
            self.clip.l2_clip_norm,
        )

    @property
    def l2_norm_bound(self) -> float:
        """The bound of one record's contribution, including the count of adaptive clipping."""
        return self.clip.l2_norm_bound if self.counting is None else self.counting.l2_norm_bound

    def clip_norm(self, noise_state: PyTree) -> float | jax.Array:
        """Returns the clip norm of the next step: an array of the state if it adapts."""
        if self.counting is None:
            return self.clip.l2_clip_norm
        if not isinstance(noise_state, AdaptiveNoiseState):
            raise FixArgumentsError(
                "this plan adapts its clip norm: pass the state of its noise_addition_transform."
            )
        return noise_state.clip_norm

    def clipped_grad(
        self,
        fun: Callable[..., Any],
        argnums: int | tuple[int, ...] = 0,
        has_aux: bool = False,
        *,
        clip_norm: float | jax.Array | None = None,
        **options: Any,
    ) -> BoundedSensitivityCallable:
        """`bevel.clipped_grad` with the plan's clipping options.

        With adaptive clipping the result is a `CountedGradient`, the input of the plan's noise. If
        the unit is the user, data have the shape (users, examples, ...), and `fun` gets the
        examples of one user, (examples, ...).

        Args:
          fun, argnums, has_aux: as in `bevel.clipped_grad`.
          clip_norm: `plan.clip_norm(noise_state)`. Required if it adapts; may be traced.
          options: other options of `bevel.clipped_grad`: batch_argnums, prng_argnum,
            return_values, return_grad_norms, pre_clipping_transform, engine, norms, memory,
            batch_axes, reduce_axes.
        """
        not_allowed = sorted(SET_BY_PLAN & set(options))
        if not_allowed:
            raise FixArgumentsError(
                f"the plan sets {', '.join(not_allowed)}, because its noise and its event depend "
                "on it. Change the config and make another plan."
            )
        options |= {
            "l2_clip_norm": self.clip.l2_clip_norm,
            "rescale_to_unit_norm": self.clip.rescale_to_unit_norm,
            "normalize_by": self.clip.normalize_by,
            "keep_batch_dim": self.unit.keep_batch_dim(self.flags.keep_batch_dim),
            "microbatch_size": self.flags.microbatch_size,
        }
        counting = self.counting
        if counting is None:
            return clipped_grad(fun, argnums, has_aux, **options)
        if clip_norm is None:
            raise FixArgumentsError(
                "this plan adapts its clip norm: pass clip_norm=plan.clip_norm(noise_state)."
            )
        keep_norms = options.pop("return_grad_norms", False)
        adapted = {"l2_clip_norm": clip_norm, "rescale_to_unit_norm": True}
        inner = clipped_grad(fun, argnums, has_aux, return_grad_norms=True, **(options | adapted))
        returns_aux = has_aux or keep_norms or bool(options.get("return_values"))
        return counting.add_count(inner, clip_norm, keep_norms, returns_aux)

    # Noise.

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of z in the noised sum. The noise is z, or C^-1 z if correlated.

        It is rounded up to a float32 number, because the noise is scaled in float32.
        """
        noise = self.mechanism.noise_multiplier
        if noise is None:
            return 0.0
        exact = noise * self.mechanism.sensitivity(self.iterations) * self.l2_norm_bound
        rounded = np.float32(exact)
        above = np.nextafter(rounded, np.float32(np.inf))
        return float(rounded) if float(rounded) >= exact else float(above)

    def noise_row_norms(self) -> np.ndarray | None:
        """Returns the norms of the rows of C^-1, for noise-aware optimizers; None if all are 1."""
        return self.mechanism.noise_matrix.row_norms(self.iterations)

    @property
    def rmse(self) -> float:
        """The root mean square, over steps, of the noise in a coordinate of the gradient sums.

        Correlated noise is chosen to make it small, because parameters follow the gradient sums.
        """
        return self.mechanism.rmse((self.mechanism.noise_multiplier or 0.0) * self.l2_norm_bound)

    def _noise(self) -> optax.GradientTransformationExtraArgs:
        if self.mechanism.noise_multiplier is None:
            return optax.with_extra_args_support(optax.identity())
        counting = self.counting
        options: dict[str, Any] = {
            "stddev": self.noise_stddev,
            "prng_key": self.secrets.noise_seed if self.secrets.known else self.secrets.noise_key,
            "dtype": self.flags.dtype if counting is None else None,
            "intermediate_strategy": self.flags.intermediate_strategy,
        }
        matrix = self.mechanism.noise_matrix.noising_matrix(self.iterations)
        if matrix is None:
            noise = noise_addition.gaussian_privatizer(**options)
        else:
            noise = noise_addition.matrix_factorization_privatizer(
                matrix, buffers_in=self.flags.buffers_in, **options
            )
        noise.reserve_key()
        return noise if counting is None else counting.transform(noise, self.flags.dtype)

    # Privacy accounting.

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        return self.mechanism.relation

    @functools.cached_property
    def dp_event(self) -> DpEvent:
        """The event of all steps."""
        return self.event_after(self.iterations)

    def event_after(self, steps: int) -> DpEvent:
        """Returns the event of the first `steps` steps, at least 1."""
        return self.mechanism.event_after(steps)

    @property
    def composes_by_step(self) -> bool:
        """Whether steps can be charged one by one. Otherwise each charge restates its range."""
        return self.mechanism.composes_by_step

    def charge(self, first: int, stop: int, begun: int = 0) -> PlannedCharge:
        """Returns the charge before releasing steps `first` to `stop - 1`: see `planned_charge`."""
        return planned_charge(self.mechanism, first, stop, begun)

    def epsilon(self, step: int | None = None, *, delta: float | None = None) -> float:
        """Returns epsilon after `step` steps (default: all), by default at the budget's delta."""
        steps = self.iterations if step is None else whole_number("step", step, 0)
        if steps > self.iterations:
            raise FixArgumentsError(
                f"step={step}: pass at most {self.iterations}, the number of steps of the plan."
            )
        if steps == 0:
            return 0.0
        return epsilon_of(
            self.event_after(steps),
            delta=self._delta_or_default(delta),
            neighboring_relation=self.neighboring_relation,
        )

    def epsilon_after_each_step(
        self, *, delta: float | None = None, points: int = 32
    ) -> np.ndarray:
        """Returns epsilon after 1, 2, ... steps: see `bevel.accounting.epsilon_after_each_step`."""
        return epsilon_after_each_step(
            self.event_after,
            self.iterations,
            delta=self._delta_or_default(delta),
            neighboring_relation=self.neighboring_relation,
            points=points,
        )

    def _delta_or_default(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        if self.budget is None:
            raise FixArgumentsError("the plan has no budget to take delta from: pass delta=...")
        return self.budget.delta

    # Description.

    def fingerprint(self) -> str:
        """Returns a hash, in hex, of everything that changes the guarantee or released numbers.

        It does not cover the secrets, nor options that change speed only. The same config has the
        same fingerprint in every process. Ledgers and checkpoints record it.
        """
        dtype = None if self.flags.dtype is None else np.dtype(self.flags.dtype).name
        parts = (self.mechanism, self.clip, self.unit, self.expected_batch_size)
        return fingerprint(*parts, dtype, DRAW_VERSION)

    def describe(self, delta: float | None = None) -> None:
        """Prints the plan as a table, with epsilons at `delta`; `str(plan)` returns its text."""
        from bevel.execution_plan.describe import plan_table

        print(plan_table(self, delta))

    def __str__(self) -> str:
        from bevel.execution_plan.describe import plan_table

        return plan_table(self)
