"""`DPKerasConfig`: the budget, clipping and batches of a private Keras model."""

import dataclasses
import warnings

from bevel.accounting import check_budget, epsilon
from bevel.accounting.accountants import rdp_with_few_orders
from bevel.accounting.rounding import shown_epsilon
from bevel.checks import finite_number, flag, positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, DPSGDConfig, PerformanceFlags, PlanSecrets

# With less noise, the tightest accountants need too much memory.
LEAST_NOISE = 0.2


@dataclasses.dataclass(frozen=True)
class DPKerasConfig:
    """How a Keras model is trained with DP-SGD. `epsilon` and `delta` hold after `train_steps`.

    | `poisson_sampling_in_fit` | a batch is                       | for the calibrated noise     |
    | ------------------------- | -------------------------------- | ---------------------------- |
    | True                      | each example independently, with | `epsilon` holds under        |
    |                           | probability B / `train_size`     | add-or-remove                |
    | False (default)           | a random set of exactly B        | a larger epsilon holds under |
    |                           | examples, new at every step      | replace-one: see the warning |

    B is `effective_batch_size`. The noise is calibrated for Poisson batches in both cases, as in
    JAX Privacy. Batches of a fixed size do not have the same guarantee, so `make_private` then
    warns, with the epsilon that is proven for them. Pass True where you can.

    Attributes:
      epsilon, delta: the budget of the whole training.
      clipping_norm: the largest norm of the gradient of one example.
      batch_size: the number of examples that are processed at a time.
      gradient_accumulation_steps: the number of such batches in one update of the optimizer. Their
        clipped sums are added up, and noise is added once, to the sum over all of them.
      train_steps: the number of updates of the optimizer, over all calls of `fit`. `fit` refuses to
        take more.
      train_size: the number of training examples.
      poisson_sampling_in_fit: see the table.
      noise_multiplier: the standard deviation of the noise, relative to the clip norm; by default
        it is calibrated to the budget.
      rescale_to_unit_norm: divide gradients by the clip norm, so that you need not change the
        learning rate with it.
      microbatch_size: the number of examples whose gradients are formed at the same time, if less
        than `batch_size`. It changes memory and speed only.
      seed: for tests: anyone who guesses it can remove the noise. By default the noise key and the
        seed of the batches are drawn from the operating system.
    """

    epsilon: float
    delta: float
    clipping_norm: float
    batch_size: int
    gradient_accumulation_steps: int
    train_steps: int
    train_size: int
    poisson_sampling_in_fit: bool = False
    noise_multiplier: float | None = None
    rescale_to_unit_norm: bool = True
    microbatch_size: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        finite_number("epsilon", self.epsilon, "such as 3", 0)
        finite_number("delta", self.delta, "well below one over train_size", 0, 1)
        check_budget(self.epsilon, self.delta)
        positive_number("clipping_norm", self.clipping_norm, "the largest norm of a gradient")
        for name in ("batch_size", "gradient_accumulation_steps", "train_steps", "train_size"):
            whole_number(name, getattr(self, name))
        if self.effective_batch_size > self.train_size:
            raise FixArgumentsError(
                f"batch_size * gradient_accumulation_steps is {self.effective_batch_size}, which "
                f"is more than train_size={self.train_size}: use smaller or fewer batches."
            )
        if self.noise_multiplier is not None:
            hint = "or leave it out to calibrate it to epsilon and delta"
            positive_number("noise_multiplier", self.noise_multiplier, hint)
        if self.microbatch_size is not None:
            whole_number("microbatch_size", self.microbatch_size)
            if self.microbatch_size > self.batch_size:
                raise FixArgumentsError(
                    f"microbatch_size={self.microbatch_size} is more than "
                    f"batch_size={self.batch_size}: pass at most that."
                )
        for name in ("poisson_sampling_in_fit", "rescale_to_unit_norm"):
            flag(name, getattr(self, name))
        if self.seed is not None:
            whole_number("seed", self.seed, 0, 2**128)

    @property
    def effective_batch_size(self) -> int:
        """The mean number of examples in one update of the optimizer."""
        return self.batch_size * self.gradient_accumulation_steps

    def update_with_calibrated_noise_multiplier(self) -> "DPKerasConfig":
        """Returns a copy with the smallest noise multiplier that is within the budget.

        It is calibrated for `train_steps` steps of Poisson batches, under add-or-remove.
        """
        calibrated = self._poisson.calibrate(epsilon=self.epsilon, delta=self.delta)
        return dataclasses.replace(self, noise_multiplier=calibrated.noise_multiplier)

    def make_plan(self) -> DPExecutionPlan:
        """Makes the plan that batches, clipping, noise and epsilon of a model follow from.

        Warns if `epsilon` does not hold for this plan, or if its secrets are known.
        """
        secrets = None
        if self.seed is not None:
            warnings.warn(
                f"seed={self.seed}: leave out seed for real data, because anyone who guesses it "
                "can remove the noise.",
                stacklevel=3,
            )
            secrets = PlanSecrets.for_tests(self.seed)
        microbatch_size = self.microbatch_size
        if microbatch_size is None and self.gradient_accumulation_steps > 1:
            microbatch_size = self.batch_size
        calibrated = self
        if self.noise_multiplier is None:
            calibrated = self.update_with_calibrated_noise_multiplier()
        plan = calibrated._sampled.make(
            PerformanceFlags(microbatch_size=microbatch_size), secrets=secrets
        )
        problem = calibrated._excess(_proven_epsilon(plan, self.delta))
        if problem is not None:
            warnings.warn(problem, stacklevel=3)
        return plan

    def _excess(self, proven: float) -> str | None:
        """What to say about an epsilon that is proven, if it is above that of the config."""
        if proven <= self.epsilon * (1 + 1e-6):
            return None
        if self.poisson_sampling_in_fit:
            return (
                f"noise_multiplier={self.noise_multiplier:g} gives epsilon "
                f"{shown_epsilon(proven)}, and not {self.epsilon:g}. Leave it out to calibrate it."
            )
        return (
            "the noise is calibrated for Poisson batches, but poisson_sampling_in_fit=False: fit "
            f"draws batches of exactly {self.effective_batch_size} examples, for which the proven "
            f"epsilon is {shown_epsilon(proven)} (replace-one), and not {self.epsilon:g}. Pass "
            "poisson_sampling_in_fit=True."
        )

    @property
    def _poisson(self) -> DPSGDConfig:
        return DPSGDConfig(
            num_examples=self.train_size,
            expected_batch_size=self.effective_batch_size,
            iterations=self.train_steps,
            noise_multiplier=self.noise_multiplier,
            l2_clip_norm=self.clipping_norm,
            rescale_to_unit_norm=self.rescale_to_unit_norm,
        )

    @property
    def _sampled(self) -> DPSGDConfig:
        """With the batches of `fit`."""
        if self.poisson_sampling_in_fit:
            return self._poisson
        return dataclasses.replace(
            self._poisson, sampling="fixed", neighboring_relation="REPLACE_ONE"
        )


def _proven_epsilon(plan: DPExecutionPlan, delta: float) -> float:
    """The epsilon of all steps. With little noise it is not tight, but large in any case."""
    tight = (plan.mechanism.noise_multiplier or 0.0) >= LEAST_NOISE
    return epsilon(
        plan.dp_event,
        delta=delta,
        neighboring_relation=plan.neighboring_relation,
        accountant_fn=None if tight else rdp_with_few_orders,
    )
