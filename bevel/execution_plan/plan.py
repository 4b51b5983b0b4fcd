"""The plan: one object that couples what must agree."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optax
from dp_accounting import DpEvent, NeighboringRelation

from bevel import noise_addition
from bevel.accounting import Budget, epsilon_after_each_step
from bevel.accounting import epsilon as epsilon_of
from bevel.batch_selection import ExamplesByUser, PaddedSizes
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import whole_number
from bevel.clipping import BoundedSensitivityCallable, clipped_grad
from bevel.errors import FixArgumentsError
from bevel.execution_plan.adaptive_clipping import AdaptiveNoiseState, Counting
from bevel.execution_plan.batch_sizes import sizes_for
from bevel.execution_plan.charges import PlannedCharge, planned_charge
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.fingerprint import fingerprint
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.performance import PerformanceFlags
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.execution_plan.privacy_unit import Unit

# What the plan decides about clipping: nobody else may.
DECIDED = {
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
    """Sampler, clipping, noise and event of one run, made from one config.

    Formal guarantee: what `noise_addition_transform` releases over all steps, if the batches are
    those of `batch_selection_strategy` with the plan's seed and the sums those of `clipped_grad`,
    satisfies `dp_event` for neighbours that differ in one `unit` under `neighboring_relation`, in
    real-number arithmetic. Computed in floating point, two things are not covered: the rounding of
    the sums (`BoundedSensitivityCallable.rounding_bound`), and the bits of the noised result, from
    which an adversary can learn more than the event says (docs/guarantees.md). Exact arithmetic,
    `discrete_gaussian_privatizer` on an integer grid, is not offered by plans.

    A plan has no way to set one of the four without the others. Configs make plans; a step is

        rows = plan.padded_sizes().pad(plan.batch(step, num_examples))
        clip = plan.clip_norm(noise_state)
        sums = plan.clipped_grad(loss, clip_norm=clip)(params, data[rows], is_padding_example=...)
        grads, noise_state = plan.noise_addition_transform.update(sums, noise_state)

    Attributes:
      mechanism: batches and noise, and their event.
      clip: how one record is bounded.
      unit: what is protected.
      expected_batch_size: units in a batch on average, where that is known.
      budget: what the noise was calibrated for, if it was.
      flags: what changes speed only.
      secrets: the key of the noise and the seed of the batches.
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
        self.unit.keep_batch_dim(self.flags.keep_batch_dim)
        object.__setattr__(self, "noise_addition_transform", self._noise())

    # Which batches.

    @property
    def iterations(self) -> int:
        return self.mechanism.iterations

    @property
    def num_units(self) -> int | None:
        """Examples or users, where their number is known."""
        return self.mechanism.num_units

    @functools.cached_property
    def batch_selection_strategy(self) -> Any:
        """The sampler; over users, a `UserSelectionStrategy`."""
        return self.unit.selection(self.mechanism.sampler)

    def batch(self, step: int, population: Any, *, attempt: int = 0, **process: int) -> np.ndarray:
        """The indices of a step; for users (users, examples), -1 where a user has fewer.

        Args:
          population: the number of examples; the users' ids or `ExamplesByUser`, for users.
          attempt: of the ledger: another attempt has other batches.
          process: `process_index`, `process_count`: the share of one process.
        """
        self.check_population(population)
        seed = self.secrets.of_attempt(attempt).sampling_seed
        return self.batch_selection_strategy.batch(step, population, seed, **process)

    def batches(self, population: Any, *, first: int = 0, attempt: int = 0) -> Iterator[np.ndarray]:
        """The batches of steps `first`, `first + 1`, ...: each as `batch` gives it.

        Samplers that rest their units replay the steps before `first` once; others need not.
        """
        self.check_population(population)
        seed = self.secrets.of_attempt(attempt).sampling_seed
        if isinstance(self.mechanism.sampler, RandomAccessSampler):
            steps = range(first, self.iterations)
            return (self.batch_selection_strategy.batch(k, population, seed) for k in steps)
        replayed = self.batch_selection_strategy.batch_iterator(population, seed)
        return itertools.islice(replayed, first, None)

    def check_population(self, population: Any) -> None:
        """Raises unless there are as many units as the plan was made for."""
        if self.num_units is None:
            return
        users = self.unit.name == "user"
        found = len(ExamplesByUser.of(population)) if users else population
        if found != self.num_units:
            raise FixArgumentsError(
                f"the data set has {found} {self.unit.name}s, and the plan was made for "
                f"{self.num_units}: its sampling probability and delta are for that number."
            )

    def padded_sizes(self, *, multiple: int = 1, count: int = 3) -> PaddedSizes:
        """A few sizes that batches are padded to. They depend on the law of the sizes alone.

        Args:
          multiple: of the devices that share a batch.
        """
        if self.expected_batch_size is None:
            raise FixArgumentsError(
                "the expected batch size is not known: give the config num_examples."
            )
        multiple = math.lcm(multiple, self.flags.microbatch_size or 1)
        return sizes_for(self.mechanism.sampler, self.expected_batch_size, multiple, count)

    # How one unit is bounded.

    @functools.cached_property
    def counting(self) -> Counting | None:
        """Adaptive clipping with its numbers, or None where the clip norm stays as it is."""
        noise, size = self.mechanism.noise_multiplier, self.expected_batch_size
        if self.clip.adaptive is None or noise is None or size is None:
            return None
        return Counting(
            self.clip.adaptive,
            noise,
            size,
            self.clip.normalize_by,
            self.clip.rescale_to_unit_norm,
            self.clip.l2_clip_norm,
        )

    @property
    def l2_norm_bound(self) -> float:
        """Of one record's contribution to the sum, the count of adaptive clipping included."""
        return self.clip.l2_norm_bound if self.counting is None else self.counting.l2_norm_bound

    def clip_norm(self, noise_state: Any) -> Any:
        """The clip norm of the next step: a number, or an array of the state where it adapts."""
        if self.counting is None:
            return self.clip.l2_clip_norm
        if not isinstance(noise_state, AdaptiveNoiseState):
            raise FixArgumentsError(
                "this plan's clip norm adapts: pass the state of its noise_addition_transform."
            )
        return noise_state.clip_norm

    def clipped_grad(
        self,
        fun: Callable[..., Any],
        argnums: int | tuple[int, ...] = 0,
        has_aux: bool = False,
        *,
        clip_norm: Any = None,
        **options: Any,
    ) -> BoundedSensitivityCallable:
        """`bevel.clipped_grad` with the plan's clipping, for the plan's noise.

        Args:
          fun, argnums, has_aux: as in `bevel.clipped_grad`.
          clip_norm: `plan.clip_norm(noise_state)`. Needed where it adapts; may be traced.
          options: those of `bevel.clipped_grad` that the plan does not decide: batch_argnums,
            prng_argnum, return_values, return_grad_norms, pre_clipping_transform, engine, norms,
            memory, batch_axes, reduce_axes.

        With adaptive clipping the result is a `CountedGradient`, for the plan's noise to take.
        Users' data have the shape (users, examples, ...), and `fun` gets (examples, ...) of one.
        """
        decided = sorted(DECIDED & set(options))
        if decided:
            raise FixArgumentsError(
                f"the plan decides {', '.join(decided)}: its noise and its event belong to that. "
                "Change the config, and make another plan."
            )
        options |= {
            "normalize_by": self.clip.normalize_by,
            "keep_batch_dim": self.unit.keep_batch_dim(self.flags.keep_batch_dim),
            "microbatch_size": self.flags.microbatch_size,
        }
        counting = self.counting
        if counting is None:
            return clipped_grad(
                fun,
                argnums,
                has_aux,
                l2_clip_norm=self.clip.l2_clip_norm,
                rescale_to_unit_norm=self.clip.rescale_to_unit_norm,
                **options,
            )
        if clip_norm is None:
            raise FixArgumentsError(
                "this plan's clip norm adapts: pass clip_norm=plan.clip_norm(noise_state)."
            )
        keep_norms = options.pop("return_grad_norms", False)
        inner = clipped_grad(
            fun,
            argnums,
            has_aux,
            l2_clip_norm=clip_norm,
            rescale_to_unit_norm=True,
            return_grad_norms=True,
            **options,
        )
        wants_aux = has_aux or keep_norms or bool(options.get("return_values"))
        return counting.counted(inner, clip_norm, keep_norms, wants_aux)

    # What noise.

    @property
    def noise_stddev(self) -> float:
        """Of z, in the units of the noised sum: the noise is z, or C^-1 z where it is correlated.

        Rounded up to a number of float32, in which it is multiplied.
        """
        noise = self.mechanism.noise_multiplier
        if noise is None:
            return 0.0
        exact = noise * self.mechanism.sensitivity(self.iterations) * self.l2_norm_bound
        single = np.float32(exact)
        above = np.nextafter(single, np.float32(np.inf))
        return float(single) if float(single) >= exact else float(above)

    def noise_row_norms(self) -> np.ndarray | None:
        """Norms of the rows of C^-1, for optimizers that know of noise; None where all are 1."""
        return self.mechanism.strategy.row_norms(self.iterations)

    @property
    def rmse(self) -> float:
        """Root mean square, over steps, of the noise in a coordinate of the sum of all gradients.

        What correlated noise makes small: parameters follow the sums of gradients.
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
        matrix = self.mechanism.strategy.noising_matrix(self.iterations)
        if matrix is None:
            noise = noise_addition.gaussian_privatizer(**options)
        else:
            noise = noise_addition.matrix_factorization_privatizer(
                matrix, buffers_in=self.flags.buffers_in, **options
            )
        return noise if counting is None else counting.transform(noise, self.flags.dtype)

    # What it costs.

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        return self.mechanism.relation

    @functools.cached_property
    def dp_event(self) -> DpEvent:
        """Of all steps."""
        return self.event_after(self.iterations)

    def event_after(self, steps: int) -> DpEvent:
        """Of the first `steps` steps, from 1."""
        return self.mechanism.event_after(steps)

    @property
    def composes_by_step(self) -> bool:
        """Whether steps can be charged one by one; otherwise the range is stated anew each time."""
        return self.mechanism.composes_by_step

    def charge(self, first: int, stop: int, begun: int = 0) -> PlannedCharge:
        """What a ledger is charged before steps `first` to `stop - 1` are released: charges.py."""
        return planned_charge(self.mechanism, first, stop, begun)

    def epsilon(self, step: int | None = None, *, delta: float | None = None) -> float:
        """What the first `step` steps cost, by default all of them, at the budget's delta."""
        taken = self.iterations if step is None else whole_number("step", step, 0)
        if taken > self.iterations:
            raise FixArgumentsError(
                f"step={step}: the plan has {self.iterations} steps, and no guarantee for more."
            )
        if taken == 0:
            return 0.0
        return epsilon_of(
            self.event_after(taken),
            delta=self.delta_or(delta),
            neighboring_relation=self.neighboring_relation,
        )

    def epsilon_after_each_step(
        self, *, delta: float | None = None, points: int = 32
    ) -> np.ndarray:
        """Epsilon after 1, 2, ... steps: see `bevel.accounting.epsilon_after_each_step`."""
        return epsilon_after_each_step(
            self.event_after,
            self.iterations,
            delta=self.delta_or(delta),
            neighboring_relation=self.neighboring_relation,
            points=points,
        )

    def delta_or(self, given: float | None) -> float:
        """The given delta, or that of the budget."""
        if given is not None:
            return given
        if self.budget is None:
            raise FixArgumentsError("the plan has no budget, so give delta=...")
        return self.budget.delta

    # What it is.

    def fingerprint(self) -> str:
        """A hash, in hex, of all that changes the guarantee or the released numbers.

        Not in it: the secrets, and options that change speed only. The same for the same config in
        every process: ledgers and checkpoints record it.
        """
        dtype = None if self.flags.dtype is None else np.dtype(self.flags.dtype).name
        return fingerprint(self.mechanism, self.clip, self.unit, self.expected_batch_size, dtype)

    def describe(self, delta: float | None = None) -> None:
        """Prints the plan as a table; `str(plan)` is its text."""
        from bevel.execution_plan.describe import described

        print(described(self, delta))

    def __str__(self) -> str:
        from bevel.execution_plan.describe import described

        return described(self)
