"""`Trainer`: trains a model from a plan, a loss and an optimizer, on a mesh."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bevel.batch_selection import ExamplesByUser, PaddedSizes
from bevel.batch_selection.randomness import RngType, seed_of
from bevel.checks import flag, function, instance, is_real, shown
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, ExecutionPlanConfig, PerformanceFlags
from bevel.execution_plan.performance import checked_flags
from bevel.noise_addition import SupportedStrategies
from bevel.optimizers import AugmentedGradientTransformation, as_augmented_optimizer
from bevel.sharding.placement import placed_by
from bevel.sharding.rules import Rules
from bevel.training.batches import Batches, BatchLayout, batch_layout
from bevel.training.compilation import PadToMultiple, memory_option, padded_sizes_of
from bevel.training.contribution import Augmentation, LossFn, LossFnWithState
from bevel.training.data import DataSource, check_length, source_of
from bevel.training.folder_run import FolderRun
from bevel.training.framework_objects import check_params, check_trained
from bevel.training.initial_state import distinct, like_params, made_from, own
from bevel.training.loop import Callback, Evaluate, Loop
from bevel.training.loss_signature import check_signature
from bevel.training.memory_run import MemoryRun
from bevel.training.model_state import as_arrays
from bevel.training.out_of_memory import explain_out_of_memory
from bevel.training.private_step import PrivateStep
from bevel.training.process_agreement import check_same, is_first
from bevel.training.progress import Progress
from bevel.training.run_description import shared_by_processes
from bevel.training.run_options import RunOptions
from bevel.training.state import (
    ReleasedState,
    Trainable,
    TrainingState,
    copied,
    on_mesh,
    sharding_on,
    split,
    widened,
)
from bevel.training.terminal_progress import progress_of

PyTree = Any
Optimizer: TypeAlias = AugmentedGradientTransformation | optax.GradientTransformation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trainer:
    """Trains a model with differential privacy: `Trainer(...).fit(data, params)`.

    What is trained, and how privately:
      config: the config of a plan (`DPSGDConfig(...)`, ...), or a plan.
      loss_fn: `(params, data, prng) -> (loss, aux)`, see `LossFn`. With a model state it is
        `(params, model_state, data, prng) -> (loss, aux)`.
      optimizer: an optax optimizer, `scale_then_privatize(...)`, or a function from the plan to an
        optimizer, such as `lambda plan: dp_adam(1e-3, noise_stddev=plan.noise_stddev)`. Learning
        rates may be schedules. The optimizer sees noised gradients only.
      trainable: which parameters are trained: patterns of paths ("*/lora_*"), a function of a path,
        or a tree of booleans. The others are frozen: they have no gradient, noise or optimizer
        state.
      augmentation: several views of one example, clipped as one.
      ema_decay: the decay of an exponential moving average of the parameters; early in training it
        is (1 + step) / (10 + step) if that is less. Evaluation then sees the average.
      allow_coupled_examples: train with a loss that couples examples, such as one with BatchNorm,
        on one example at a time. By default such a loss is refused.

    Where it runs, and how fast:
      mesh, rules: as in `bevel.sharding.place`. Without a mesh, one device.
      batch_axes: mesh axes that carry examples; by default those named data, fsdp, replica, batch.
      performance_flags: the flags of the plan.
      compilation_strategy: the sizes that batches are padded to, `PadToMultiple(...)` or
        `AutotuneMicrobatch(...)`; by default the plan chooses a few sizes.

    Only the config affects epsilon.
    """

    config: ExecutionPlanConfig | DPExecutionPlan
    loss_fn: LossFn | LossFnWithState
    optimizer: Optimizer | Callable[[DPExecutionPlan], Optimizer]
    performance_flags: PerformanceFlags | None = None
    compilation_strategy: PaddedSizes | PadToMultiple | None = None
    mesh: Mesh | None = None
    rules: Rules = "replicated"
    batch_axes: tuple[str, ...] | str | None = None
    trainable: Trainable = None
    augmentation: Augmentation | None = None
    ema_decay: float | None = None
    allow_coupled_examples: bool = False

    def __post_init__(self) -> None:
        function("loss_fn", self.loss_fn, "pass a function (params, data, prng) -> (loss, aux)")
        flag("allow_coupled_examples", self.allow_coupled_examples)
        instance("mesh", self.mesh, Mesh | None, "a jax.sharding.Mesh, or None for one device")
        options = PaddedSizes | PadToMultiple | None
        hint = "PadToMultiple(...), AutotuneMicrobatch(...), or None"
        instance("compilation_strategy", self.compilation_strategy, options, hint)
        instance("augmentation", self.augmentation, Augmentation | None, "Augmentation(...)")
        checked_flags(self.performance_flags)
        decay = self.ema_decay
        if decay is not None and not (is_real(decay) and 0 < decay < 1):
            raise FixArgumentsError(
                f"ema_decay={shown(self.ema_decay)}: pass a number between 0 and 1, such as 0.999."
            )
        if isinstance(self.config, DPExecutionPlan):
            if self.performance_flags is not None:
                raise FixArgumentsError(
                    "config is a plan, which already has performance flags. Pass its config, "
                    "or the plan from config.make(performance_flags)."
                )
        elif not hasattr(self.config, "make"):
            raise FixArgumentsError(
                f"config is a {type(self.config).__name__}: pass DPSGDConfig(...).calibrate(...), "
                "or the plan that its make() returns."
            )

    @functools.cached_property
    def plan(self) -> DPExecutionPlan:
        if isinstance(self.config, DPExecutionPlan):
            return self.config
        return self.config.make(self.performance_flags)

    @functools.cached_property
    def _optimizer(self) -> AugmentedGradientTransformation:
        return as_augmented_optimizer(self._given_optimizer)

    @functools.cached_property
    def _given_optimizer(self) -> Any:
        if not callable(self.optimizer):
            return self.optimizer
        if str(getattr(self.optimizer, "__module__", "")).startswith("optax."):
            name = getattr(self.optimizer, "__name__", "adam")
            raise FixArgumentsError(
                f"the optimizer is the function optax.{name}: call it, as in optax.{name}(1e-3)."
            )
        return self.optimizer(self.plan)

    @functools.cached_property
    def layout(self) -> BatchLayout:
        return batch_layout(self.mesh, self.batch_axes)

    def init(self, params: PyTree, *, model_state: PyTree = None) -> TrainingState:
        """The state before step 0, on the mesh. Your arrays are copied, not changed.

        Each array of the state is made once, where it stays: besides the state, there are only
        your own arrays. A model state is replicated, except for arrays that are already on the
        mesh.
        """
        check_signature(self.loss_fn, has_model_state=model_state is not None)
        check_params(params)
        params = (
            jax.tree.map(own, params)
            if self.mesh is None
            else placed_by(own, params, self.mesh, self.rules)
        )
        trained, _ = split(params, self.trainable)
        check_trained(trained)
        optimizer, noise = self._optimizer, self.plan.noise_addition_transform
        flags, default = self.plan.flags, SupportedStrategies.DEFAULT
        # Other layouts are chosen from arrays that are on the mesh.
        in_program = (flags.buffers_in, flags.intermediate_strategy) == ("device", default)
        state = TrainingState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=made_from(
                lambda x: optimizer.init(widened(x)), trained, self.mesh, like_params
            ),
            noise_state=made_from(noise.init, trained, self.mesh)
            if in_program
            else noise.init(trained),
            average=None if self.ema_decay is None else widened(trained),
            model_state=jax.tree.map(
                lambda x: own(x, sharding_on(self.mesh, x)), as_arrays(model_state)
            ),
        )
        # An array in two places cannot be donated twice.
        return distinct(on_mesh(state, self.mesh))

    def released(self, state: TrainingState) -> ReleasedState:
        """The part of a state that may be released, once its steps are charged."""
        adapts = self.plan.counting is not None
        return ReleasedState(
            step=state.step,
            params=state.params,
            opt_state=state.opt_state,
            average=state.average,
            clip_norm=self.plan.clip_norm(state.noise_state) if adapts else None,
            model_state=state.model_state,
        )

    # One step.

    @functools.cached_property
    def step(self) -> PrivateStep:
        """Clips, adds noise and updates: the step that `train_step` and `fit` take."""
        return PrivateStep(
            plan=self.plan,
            loss_fn=self.loss_fn,
            optimizer=self._optimizer,
            transforms_gradients=isinstance(self._given_optimizer, AugmentedGradientTransformation),
            batch_axes=None if self.mesh is None else self.layout.axes,
            trainable=self.trainable,
            augmentation=self.augmentation,
            ema_decay=self.ema_decay,
            clip_options=memory_option(self.compilation_strategy, self.plan),
            allow_coupled_examples=self.allow_coupled_examples,
        )

    def train_step(
        self,
        state: TrainingState,
        batch: PyTree,
        is_padding_example: jax.Array,
        prng_key: jax.Array,
        *,
        noise_key: jax.Array | None = None,
    ) -> tuple[TrainingState, Any]:
        """Takes one step by hand: returns the next state, and per-example outputs.

        The outputs are not private. The memory of `state` is reused, so go on with the returned
        state. You select batches by the plan yourself, and charge a ledger before you release
        anything.

        Args:
          batch: rows of data; if users are protected, a pair of the rows (users, examples, ...)
            and a mask of missing examples.
          is_padding_example: True for rows that are padding.
          prng_key: for the loss: dropout, augmentation.
          noise_key: for the noise; by default the plan's.
        """
        if self.plan.unit.name == "example":
            batch = (batch, None)
        noise_key = self.plan.secrets.noise_key if noise_key is None else noise_key
        state, aux, _ = self.step.jitted(state, batch, is_padding_example, prng_key, noise_key)
        return state, aux

    # All steps.

    def fit(
        self,
        dataset: Any,
        state: PyTree | TrainingState,
        *,
        model_state: PyTree = None,
        folder: str | os.PathLike[str] | None = None,
        evaluate: Evaluate | None = None,
        callback: Callback | None = None,
        user_ids: np.ndarray | ExamplesByUser | None = None,
        options: RunOptions | None = None,
        rng_or_seed: RngType = None,
        precompile: bool = True,
    ) -> TrainingState:
        """Runs all steps of the plan, or those that are left, and returns the last state.

        Args:
          dataset: arrays with one row per record, or any random-access source (`training.data`).
          state: the initial parameters; without a folder also a state to continue from. Both are
            copied once: as long as you hold a state that you passed, there are two.
          model_state: what the loss reads and nobody trains, as a tree of arrays: frozen batch
            statistics, tables, typed keys. The loss then takes it as its second argument, the same
            at every step. It is treated like frozen parameters, and a loss that returns a changed
            one in aux is refused (`training.model_state`).
          folder: where the run is kept (`training.folder`). What may be shown to anyone is in
            `released/`, the rest in `private/`. If the run is killed and started again, on any
            mesh, it resumes from its last checkpoint. Without a folder, nothing is written and
            nothing is charged.
          evaluate: `params -> metrics`, on public or held-out data, at every checkpoint. The result
            is released, so it must not depend on the training data.
          callback: `(state, metrics)`, at every checkpoint once it is on disk. The state is a
            `ReleasedState`, whose memory the next step reuses: copy what you want to keep. If the
            callback returns True, the run ends there.
          user_ids: the user of every record, if users are protected. For a data set that is sorted
            by user, `ExamplesByUser.from_offsets` takes less memory.
          options: see `RunOptions`.
          rng_or_seed: the seed of the batches, without a folder; by default the plan's secret seed.
          precompile: compile the step for the smallest padded size while the run is prepared, and
            for the others, one at a time, in the background of steps. False compiles each when a
            batch needs it.

        Raises:
          RunInterrupted: after Ctrl-C or SIGTERM, once the state is saved; it carries the state.
          RestoreCheckpointError: the folder holds a run with other data, another plan, other
            parameters, another model state or, unless `options.accept` has it, another optimizer or
            loss.
          FixDataError: the data cannot be read, or is not what the plan was made for. The state is
            saved first.
          FreeSpaceError, FixStorageError: a file cannot be written or read (`bevel.file_errors`).
          FreeMemoryError: the memory is full.
          StopRunError: the budget does not allow a single step. A budget that allows some steps
            ends the run early instead.
        """
        given = state.model_state if isinstance(state, TrainingState) else model_state
        check_signature(self.loss_fn, has_model_state=given is not None)
        if not isinstance(state, TrainingState):
            check_params(state)
        options = options or RunOptions()
        if not isinstance(options, RunOptions):
            raise FixArgumentsError(f"options is a {type(options).__name__}: pass RunOptions(...).")
        for name, given in (("evaluate", evaluate), ("callback", callback)):
            if given is not None and not callable(given):
                raise FixArgumentsError(f"{name}={given!r}: pass a function.")
        if jax.process_count() > 1 and self.mesh is None:
            raise FixArgumentsError("several processes need a mesh: pass mesh=make_mesh(...).")
        batches = self._batches(source_of(dataset), user_ids, options.compilations)
        seed = None if rng_or_seed is None else seed_of(rng_or_seed)
        if isinstance(state, TrainingState) and folder is not None:
            raise FixArgumentsError(
                "a run in a folder resumes from its own checkpoints: pass the parameters that it "
                "started with, not a state."
            )
        if rng_or_seed is not None and folder is not None:
            raise FixArgumentsError(
                "rng_or_seed was given with a folder, but such a run draws its seed and keeps it "
                "in secrets.json. For tests: config.make(secrets=PlanSecrets.for_tests(seed))."
            )
        if jax.process_count() > 1:
            check_same(shared_by_processes(self, batches, state, model_state, options))
        if isinstance(state, TrainingState):
            if model_state is not None:
                raise FixArgumentsError(
                    "state is a TrainingState, which has a model_state of its own. Leave out "
                    "model_state=, or replace it with dataclasses.replace(state, model_state=...)."
                )
            begin = [copied(state)]
        else:
            begin = [self.init(state, model_state=model_state)]
        del state, model_state  # so that arrays that only `fit` was given can be freed
        progress = progress_of(options.progress) if is_first() else Progress()
        with explain_out_of_memory():
            if folder is None:
                run: FolderRun | MemoryRun = MemoryRun(
                    self.plan, options, seed, self._reached, int(begin[0].step)
                )
            else:
                run = FolderRun(Path(folder), self.plan, options)
            with run:
                loop = Loop(self, run, batches, options, evaluate, callback, progress, begin.pop())
                return loop.train(precompile)

    def _batches(
        self, source: DataSource, user_ids: np.ndarray | ExamplesByUser | None, compilations: int
    ) -> Batches:
        population: int | ExamplesByUser = len(source)
        if self.plan.unit.name == "user":
            population = ExamplesByUser.of(np.empty(0, int) if user_ids is None else user_ids)
            if user_ids is None or population.num_examples != len(source):
                raise FixArgumentsError(
                    f"the plan protects users: pass user_ids, one for each of {len(source)} "
                    "records."
                )
        elif user_ids is not None:
            raise FixArgumentsError(
                "user_ids was given, but the plan protects examples: make the plan with "
                "unit='user', or leave user_ids out."
            )
        counted = source if isinstance(population, int) else population
        check_length(counted, self.plan.num_units, self.plan.unit.name)
        return Batches(
            source,
            self.plan.batch_selection_strategy,
            population,
            sizes=self.sizes(compilations),
            layout=self.layout,
            microbatch_size=self.plan.flags.microbatch_size,
        )

    @functools.cached_property
    def _reached(self) -> list[int]:
        """The last step that a run without a folder took with the plan's own noise."""
        return vars(self.plan).setdefault("_reached", [0])  # trainers may share a plan

    def sizes(self, count: int = 3) -> PaddedSizes:
        """The sizes that batches are padded to."""
        parts = self.layout.parts
        sizes = padded_sizes_of(self.plan, self.compilation_strategy, parts, count)
        wrong = [size for size in sizes.sizes if size % self.layout.parts]
        if wrong:
            raise FixArgumentsError(
                f"padded sizes {wrong} are not multiples of the {self.layout.parts} parts that the "
                f"mesh splits a batch into. Use padded_sizes(..., multiple={self.layout.parts})."
            )
        return sizes


DPTrainer = Trainer
