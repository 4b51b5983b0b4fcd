"""`Trainer`: a plan, a loss and an optimizer, on a mesh. The one place where all rooms meet."""

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
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PerformanceFlags
from bevel.noise_addition import keys as noise_keys
from bevel.optimizers import AugmentedGradientTransformation, as_augmented_optimizer
from bevel.sharding import place
from bevel.training.batches import Batches, BatchLayout, batch_layout
from bevel.training.contribution import Augmentation, LossFn, contribution
from bevel.training.data import check_length, source_of
from bevel.training.digest import digest
from bevel.training.folder_run import FolderRun
from bevel.training.loop import Callback, Evaluate, Loop
from bevel.training.memory_run import MemoryRun
from bevel.training.process_agreement import check_same
from bevel.training.program_digest import derivative_digest, program_digest
from bevel.training.raw_metrics import measures
from bevel.training.run_description import in_common
from bevel.training.run_options import RunOptions
from bevel.training.state import (
    ReleasedState,
    Trainable,
    TrainingState,
    copied,
    joined,
    on_mesh,
    split,
)

PyTree = Any
Optimizer: TypeAlias = AugmentedGradientTransformation | optax.GradientTransformation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Trainer:
    """Trains a model with differential privacy: `Trainer(...).fit(data, params)`.

    What is trained, and how privately:
      config: of the plan (`DPSGDConfig(...)`, ...), or a plan.
      loss_fn: `(params, data, prng) -> (loss, aux)`, see `LossFn`.
      optimizer: of optax, or `scale_then_privatize(...)`, or a function of the plan that gives one:
        `lambda plan: dp_adam(1e-3, noise_stddev=plan.noise_stddev)`. Learning rates may be
        schedules. It sees noised gradients only.
      trainable: patterns of the paths of parameters that are trained ("*/lora_*"); the others stay
        as they are, and have neither gradients, noise nor optimizer state.
      augmentation: several views of one example, clipped as one.
      ema_decay: averages parameters over steps, with weights that decay by this; early on by less,
        (1 + step) / (10 + step). Evaluation then sees the average.

    Where and how fast:
      mesh, rules: as in `bevel.sharding.place`. Without a mesh, one device.
      batch_axes: mesh axes that carry examples; by default those named data, fsdp, replica, batch.
      performance_flags: of the plan.
      compilation_strategy: sizes that batches are padded to; by default the plan's choice.

    Only the config affects epsilon: the loss, the optimizer and the mesh do not enter it.
    """

    config: Any
    loss_fn: LossFn
    optimizer: Optimizer | Callable[[DPExecutionPlan], Optimizer]
    performance_flags: PerformanceFlags | None = None
    compilation_strategy: PaddedSizes | None = None
    mesh: Mesh | None = None
    rules: Any = "replicated"
    batch_axes: tuple[str, ...] | str | None = None
    trainable: Trainable = None
    augmentation: Augmentation | None = None
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise FixArgumentsError(
                f"ema_decay={self.ema_decay!r}: give a number between 0 and 1, such as 0.999."
            )
        if isinstance(self.config, DPExecutionPlan):
            if self.performance_flags is not None:
                raise FixArgumentsError(
                    "performance_flags beside a plan, which has its own: give the config instead, "
                    "or make the plan with these flags."
                )
        elif not hasattr(self.config, "make"):
            raise FixArgumentsError(
                f"config is a {type(self.config).__name__}: give DPSGDConfig(...).calibrate(...), "
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
        return self.optimizer(self.plan) if callable(self.optimizer) else self.optimizer

    @functools.cached_property
    def layout(self) -> BatchLayout:
        return batch_layout(self.mesh, self.batch_axes)

    def init(self, params: PyTree) -> TrainingState:
        """The state before step 0, on the mesh. The given arrays stay as they are."""
        params = jax.tree.map(jnp.asarray, params)
        if self.mesh is not None:
            params = place(params, self.mesh, self.rules)
        trained, _ = split(params, self.trainable)
        state = TrainingState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=self._optimizer.init(trained),
            noise_state=self.plan.noise_addition_transform.init(trained),
            average=None if self.ema_decay is None else trained,
        )
        # Copied: some optimizers begin with one array in two places, and each is donated once.
        return on_mesh(copied(state), self.mesh)

    def released(self, state: TrainingState) -> ReleasedState:
        """The half of a state that may be shown to anyone, once its steps are charged."""
        adapts = self.plan.counting is not None
        return ReleasedState(
            step=state.step,
            params=state.params,
            opt_state=state.opt_state,
            average=state.average,
            clip_norm=self.plan.clip_norm(state.noise_state) if adapts else None,
        )

    # One step: clip, noise, update.

    def train_step(
        self,
        state: TrainingState,
        batch: PyTree,
        is_padding_example: jax.Array,
        prng_key: jax.Array,
        *,
        noise_key: jax.Array | None = None,
    ) -> tuple[TrainingState, Any]:
        """One step by hand: the next state, and per-example outputs, which are not private.

        The state is given away: use the returned one. Selecting batches by the plan, and charging a
        ledger before anything is released, is then up to you.

        Args:
          batch: rows of data; where users are protected, a pair of the rows (users, examples, ...)
            and a mask of missing examples.
          is_padding_example: rows that are not there.
          prng_key: for the loss: dropout, augmentation.
          noise_key: of the noise; by default the plan's.
        """
        if self.plan.unit.name == "example":
            batch = (batch, None)
        noise_key = self.plan.secrets.noise_key if noise_key is None else noise_key
        state, aux, _ = self._jitted(state, batch, is_padding_example, prng_key, noise_key)
        return state, aux

    @functools.cached_property
    def _jitted(self) -> Callable[..., Any]:
        return jax.jit(self._step, donate_argnums=0)

    def _step(
        self,
        state: TrainingState,
        batch: tuple[PyTree, Any],
        is_padding: jax.Array,
        loss_key: jax.Array,
        noise_key: jax.Array,
    ) -> tuple[TrainingState, Any, PyTree]:
        sums, aux = self._clip(state, batch, is_padding, loss_key)
        noised, noise_state = self._noise(sums, state, noise_key)
        params, opt_state = self._update(noised, state)
        new = TrainingState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            noise_state=noise_state,
            average=self._average(state, params),
        )
        return new, aux, sums

    def _clip(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, key: jax.Array
    ) -> tuple[PyTree, Any]:
        """The sum of clipped gradients, and what was seen on the way."""
        options: dict[str, Any] = {"batch_argnums": 2, "prng_argnum": 3}
        options |= {"return_values": True, "return_grad_norms": True}
        if isinstance(self._given_optimizer, AugmentedGradientTransformation):
            options["pre_clipping_transform"] = self._optimizer.pre_clipping_transform(
                state.opt_state
            )
        if self.mesh is not None:
            options["batch_axes"] = self.layout.axes
        loss = contribution(self.loss_fn, self.plan.unit.name == "user", self.augmentation)
        clip_norm = self.plan.clip_norm(state.noise_state)
        clipped = self.plan.clipped_grad(loss, 0, has_aux=True, clip_norm=clip_norm, **options)
        trained, frozen = split(state.params, self.trainable)
        at_step = jax.random.fold_in(key, state.step)
        result = clipped(trained, frozen, batch, at_step, is_padding_example=is_padding)
        self._loss_program[:] = [clipped.program.loss]
        return result

    @functools.cached_property
    def _loss_program(self) -> list[Any]:
        """The jaxpr of the loss for one example, once a step was traced."""
        return []

    def program_digests(self, state: TrainingState) -> dict[str, str]:
        """Digests of what a run does beside its plan, once a step was traced."""
        trained, _ = split(state.params, self.trainable)
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (trained, state.opt_state, trained)
        )
        try:
            optimizer = program_digest(jax.make_jaxpr(self._optimizer.update)(*arguments))
        except Exception:  # it may ask for a mesh; the whole step has a fingerprint of its own
            optimizer = "cannot be traced by itself"
        begins = " ".join(digest(state.opt_state))  # where some keep their learning rate
        (loss,) = self._loss_program
        return {
            "optimizer": f"{optimizer} {begins}",
            "loss": program_digest(loss),
            "loss.derivative": derivative_digest(loss),
        }

    def _noise(self, sums: PyTree, state: TrainingState, key: jax.Array) -> tuple[PyTree, Any]:
        """The sum with noise: from here on, everything may be released.

        The barrier keeps the update a program of its own, with the same bits whatever the noised
        sum was computed from: what is released can then be rebuilt from the noised sums.
        """
        transform = self.plan.noise_addition_transform
        noised, noise_state = transform.update(sums, state.noise_state, prng_key=key)
        return jax.tree.map(jax.lax.optimization_barrier, noised), noise_state

    def _update(self, noised: PyTree, state: TrainingState) -> tuple[PyTree, Any]:
        trained, frozen = split(state.params, self.trainable)
        updates, opt_state = self._optimizer.update(noised, state.opt_state, trained)
        return joined(optax.apply_updates(trained, updates), frozen), opt_state

    def _average(self, state: TrainingState, params: PyTree) -> PyTree:
        if self.ema_decay is None:
            return None
        step = state.step.astype(jnp.float32)
        decay = jnp.minimum(jnp.float32(self.ema_decay), (1 + step) / (10 + step))

        def moved(average: jax.Array, new: jax.Array) -> jax.Array:
            share = (1 - decay).astype(average.dtype)
            return average + share * (new - average)

        return jax.tree.map(moved, state.average, split(params, self.trainable)[0])

    def _measured_step(
        self, state: TrainingState, batch: tuple[PyTree, Any], is_padding: jax.Array, words: Any
    ) -> tuple[TrainingState, dict[str, jax.Array]]:
        """The step of `fit`: keys come as words, so that they are no part of the program."""
        generator = self.plan.secrets.generator
        noise_key = noise_keys.wrapped(words["noise"], generator)
        loss_key = jax.random.wrap_key_data(words["loss"], impl="threefry2x32")
        new, aux, sums = self._step(state, batch, is_padding, loss_key, noise_key)
        clip_norm = self.plan.clip_norm(state.noise_state)
        seen = measures(aux, sums, is_padding, clip_norm, self._noise_stddev(state.step))
        return new, seen

    def _noise_stddev(self, step: jax.Array) -> Any:
        """Of one coordinate of the sum, at a step."""
        rows = self.plan.noise_row_norms()
        stddev = jnp.float32(self.plan.noise_stddev)
        return stddev if rows is None else stddev * jnp.asarray(rows, jnp.float32)[step]

    # All steps.

    def fit(
        self,
        dataset: Any,
        state: PyTree | TrainingState,
        *,
        folder: str | os.PathLike[str] | None = None,
        evaluate: Evaluate | None = None,
        callback: Callback | None = None,
        user_ids: np.ndarray | None = None,
        options: RunOptions | None = None,
        rng_or_seed: RngType = None,
        precompile: bool = True,
    ) -> TrainingState:
        """Runs all steps of the plan, or those that are left, and gives the last state.

        Args:
          dataset: arrays with one row per record, or any random-access source (`training.data`).
          state: the parameters to begin with; without a folder also a state to go on from.
          folder: keeps the run (`training.folder`): what may be shown under `released/`, the rest
            under `private/`. Killed at any moment and started again, on any mesh, it goes on from
            its last checkpoint. Without one nothing is written, and nothing is charged.
          evaluate: `params -> metrics`, on public or held-out data, at every checkpoint. What it
            returns is released: it must not look at the training data.
          callback: `(state, metrics)`, at every checkpoint once it is on disk. The state is a
            `ReleasedState`, whose memory the next step takes over: copy what you want to keep. If
            it returns True, the run ends there.
          user_ids: of every record, where users are protected.
          options: see `RunOptions`.
          rng_or_seed: of the batches, without a folder; by default the plan's secret seed.
          precompile: compile the program of every padded size before the first step.

        Raises:
          RunInterrupted: after Ctrl-C or SIGTERM, once the state is saved; it carries the state.
          RestoreCheckpointError: the folder holds a run with other data, another plan, other
            parameters or, unless `options.accept` has it, another optimizer or loss.
          FixDataError: data that cannot be read, or is not what the plan was made for; the state
            is saved first.
          StopRunError: the budget does not allow a single step. It otherwise ends the run early.
        """
        options = options or RunOptions()
        if not isinstance(options, RunOptions):
            raise FixArgumentsError(f"options is a {type(options).__name__}: give RunOptions(...).")
        for name, given in (("evaluate", evaluate), ("callback", callback)):
            if given is not None and not callable(given):
                raise FixArgumentsError(f"{name}={given!r}: give a function.")
        source = source_of(dataset)
        population: Any = len(source)
        if self.plan.unit.name == "user":
            if user_ids is None or len(user_ids) != len(source):
                raise FixArgumentsError(
                    f"the plan protects users: give user_ids, one for each of {len(source)} "
                    "records."
                )
            population = ExamplesByUser.of(user_ids)
        counted = source if user_ids is None else population
        check_length(counted, self.plan.num_units, self.plan.unit.name)
        if jax.process_count() > 1 and self.mesh is None:
            raise FixArgumentsError("several processes need a mesh: bevel.sharding.make_mesh.")
        seed = None if rng_or_seed is None else seed_of(rng_or_seed)
        batches = Batches(
            source,
            self.plan.batch_selection_strategy,
            population,
            sizes=self.sizes(options.compilations),
            layout=self.layout,
            microbatch_size=self.plan.flags.microbatch_size,
        )
        if isinstance(state, TrainingState) and folder is not None:
            raise FixArgumentsError(
                "a run in a folder goes on from its own checkpoints: pass the parameters that it "
                "was begun with, not a state."
            )
        if rng_or_seed is not None and folder is not None:
            raise FixArgumentsError(
                "rng_or_seed beside a folder: the seed of a run is drawn when it begins, and kept "
                "in its secrets.json. For tests: config.make(secrets=PlanSecrets.for_tests(seed))."
            )
        if jax.process_count() > 1:
            check_same(in_common(self, batches, state, options))
        begin = copied(state) if isinstance(state, TrainingState) else self.init(state)
        if folder is None:
            run: Any = MemoryRun(self.plan, options, seed, self._reached, int(begin.step))
        else:
            run = FolderRun(Path(folder), self.plan, options)
        with run:
            return Loop(self, run, batches, options, evaluate, callback).go(begin, precompile)

    @functools.cached_property
    def _reached(self) -> list[int]:
        """The furthest step that a run without a folder took with the plan's own noise."""
        return vars(self.plan).setdefault("_reached", [0])  # trainers may share a plan

    def sizes(self, count: int = 3) -> PaddedSizes:
        """What batches are padded to."""
        sizes = self.compilation_strategy or self.plan.padded_sizes(
            multiple=self.layout.parts, count=count
        )
        wrong = [size for size in sizes.sizes if size % self.layout.parts]
        if wrong:
            raise FixArgumentsError(
                f"padded sizes {wrong} are not multiples of the {self.layout.parts} parts that the "
                f"mesh splits a batch into: padded_sizes(..., multiple={self.layout.parts})."
            )
        return sizes


DPTrainer = Trainer
