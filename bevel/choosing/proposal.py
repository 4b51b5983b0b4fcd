"""Proposes batch size, steps, clip norm and learning rate for a budget, each with its reason."""

import dataclasses
import math

from bevel.accounting.arguments import check_budget, relation_of
from bevel.checks import (
    as_float,
    finite_number,
    instance,
    is_real,
    one_of,
    positive_number,
    shown,
    text,
    whole_number,
)
from bevel.choosing.learning_rate import learning_rate_for, noise_norm
from bevel.choosing.noise_curve import NoiseCurve, NoisePoint, least_noise, noise_curve, steps_of
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig

# More epochs cost time, but no privacy. Private models of small data sets are trained for 40 to
# 200 (De et al. 2022, arXiv:2204.13650; Tramer and Boneh 2021, arXiv:2011.11660). Above this many
# examples, fewer.
EPOCHS, EPOCHS_UP_TO = 40, 100_000
# The proposed batch is the smallest whose noise over the run is at most this far above the least.
TOLERATED_EXCESS = 0.15
# Fewer steps are too few to converge, and more average noise no better, at a cost per step.
FEWEST_STEPS, MOST_STEPS = 250, 2500
SMALLEST_BATCH = 16
CLIP_NORM = 1.0
GIVEN = "as given"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is known about a run. None means: propose it.

    Attributes:
      num_units: the number of training examples; of users, if users are protected.
      epsilon, delta: the budget.
      unit: 'example' or 'user'.
      batch_size, steps, epochs: at most two of them.
      clip_norm, learning_rate: see `OptimizerTable`: gradients are divided by the clip norm.
      parameters: the number of trained parameters, if it is known. Only the learning rate uses it.
      optimizer, momentum: 'sgd' with this momentum, 'adam' or 'dp_adam'.
      relation: the neighbouring relation.
    """

    num_units: int
    epsilon: float
    delta: float | None = None
    unit: str = "example"
    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    parameters: int | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    relation: str = "ADD_OR_REMOVE_ONE"

    def __post_init__(self) -> None:
        whole_number("num_examples", self.num_units)
        finite_number("epsilon", self.epsilon, "such as 3", 0)
        check_budget(self.epsilon, self.delta, self.num_units)
        relation_of(self.relation)
        one_of("unit", self.unit, ("example", "user"))
        one_of("optimizer", self.optimizer, ("sgd", "adam", "dp_adam"))
        hint = "a number from 0 up to, but not including, 1"
        if finite_number("momentum", self.momentum, hint, 0, 1) == 1:
            raise FixArgumentsError(f"momentum={self.momentum}: pass {hint}.")
        if not any(value is None for value in (self.batch_size, self.steps, self.epochs)):
            raise FixArgumentsError(
                "batch size, steps and epochs were all given, but any two of them determine the "
                "third: leave one out."
            )
        for name in ("epochs", "clip_norm", "learning_rate", "batch_size"):
            if getattr(self, name) is not None:
                positive_number(name, getattr(self, name), "or leave it out for a proposal")
        for name in ("steps", "parameters"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))
        if self.batch_size is not None and self.batch_size > self.num_units:
            raise FixArgumentsError(
                f"batch_size={self.batch_size:g}: pass at most {self.num_units}, the number of "
                f"{self.unit}s."
            )


@dataclasses.dataclass(frozen=True)
class ChosenNumber:
    """A number, and why it was chosen. `given` if the caller chose it."""

    value: float
    reason: str = GIVEN

    def __post_init__(self) -> None:
        # NaN stands for a number that another one determines.
        value = as_float(self.value) if is_real(self.value) else math.inf
        if math.isinf(value):
            raise FixArgumentsError(f"value={shown(self.value)}: pass the number that was chosen.")
        text("reason", self.reason)

    @property
    def given(self) -> bool:
        return self.reason == GIVEN


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The numbers of a run. Nothing in it depends on the data, except for its declared size.

    Attributes:
      choices: epsilon, delta, epochs, batch_size, steps, clip_norm and learning_rate.
      curve: the noise against the batch size.
      point: the proposed batch size and steps, with the noise multiplier that fits the budget.
    """

    request: Request
    choices: dict[str, ChosenNumber]
    curve: NoiseCurve
    point: NoisePoint

    def __post_init__(self) -> None:
        instance("request", self.request, Request, "Request(...)")
        instance("choices", self.choices, dict, "a dict of ChosenNumber")
        for choice in self.choices.values():
            instance("a choice", choice, ChosenNumber, "ChosenNumber(...)")
        instance("curve", self.curve, NoiseCurve, "NoiseCurve(...)")
        instance("point", self.point, NoisePoint, "NoisePoint(...)")

    @property
    def signal_to_noise(self) -> float | None:
        """At most this in one step: the largest mean gradient over the norm of its noise."""
        if self.request.parameters is None:
            return None
        return 1 / noise_norm(self.point, self.request.parameters)


def propose(request: Request) -> Proposal:
    """Proposes what the request leaves open. Takes a few seconds, most of it for the curve."""
    instance("request", request, Request, "Request(...)")
    units = request.num_units
    delta = _delta(request)

    def calibrated(batch_size: float, steps: int) -> float:
        config = DPSGDConfig.default(
            units, batch_size, steps, neighboring_relation=request.relation
        ).calibrate(epsilon=request.epsilon, delta=delta.value)
        assert config.noise_multiplier is not None
        return config.noise_multiplier

    epochs = epochs_for(request)
    least = least_noise(units, request.epsilon, delta.value, request.relation)
    fixed_steps = request.steps if request.epochs is None and request.batch_size is None else None
    curve = noise_curve(
        calibrated,
        units,
        least,
        epochs=epochs.value if fixed_steps is None else None,
        steps=fixed_steps,
    )
    batch = _batch_size(request, epochs.value, curve)
    steps = _steps(request, epochs.value, batch.value)
    count = int(steps.value)
    point = NoisePoint(batch.value, count, calibrated(batch.value, count))
    choices = {
        "epsilon": ChosenNumber(request.epsilon),
        "delta": delta,
        "epochs": epochs
        if epochs.given
        else dataclasses.replace(epochs, value=batch.value * count / units),
        "batch_size": batch,
        "steps": steps,
        "clip_norm": _clip_norm(request),
        "learning_rate": _learning_rate(request, point),
    }
    return Proposal(request, choices, curve, point)


def _delta(request: Request) -> ChosenNumber:
    if request.delta is not None:
        return ChosenNumber(request.delta)
    units = request.num_units
    power = math.floor(math.log10(0.1 / units) + 1e-9)
    return ChosenNumber(
        float(f"1e{power}"),
        f"at most a tenth of 1 / {units:,}: a delta of 1 / {units:,} would allow the release of "
        f"one {request.unit} in the clear",
    )


def epochs_for(request: Request) -> ChosenNumber:
    """The epochs as given or as they follow, and otherwise a number that depends on the size."""
    units = request.num_units
    if request.epochs is not None:
        return ChosenNumber(request.epochs)
    if request.batch_size is not None and request.steps is not None:
        value = request.batch_size * request.steps / units
        return ChosenNumber(value, f"steps x batch size / {units:,}")
    if request.steps is not None:
        return ChosenNumber(math.nan, f"steps x batch size / {units:,}")
    if units <= EPOCHS_UP_TO:
        why = "common for private training; more cost time, but no more noise"
        return ChosenNumber(float(EPOCHS), why)
    value = max(1.0, round(EPOCHS * math.sqrt(EPOCHS_UP_TO / units)))
    why = f"fewer than {EPOCHS}, because there are many {request.unit}s; more cost only time"
    return ChosenNumber(value, why)


def _batch_size(request: Request, epochs: float, curve: NoiseCurve) -> ChosenNumber:
    units = request.num_units
    if request.batch_size is not None:
        return ChosenNumber(request.batch_size)
    if request.steps is not None and request.epochs is not None:
        return ChosenNumber(epochs * units / request.steps, f"epochs x {units:,} / steps")
    point, limit = chosen_point(curve, request.steps is not None)
    why = f"noise over the run is {curve.excess(point):.0%} above the least possible; "
    return ChosenNumber(
        point.batch_size, why + LIMITS[limit].format(steps=point.steps, units=units)
    )


LIMITS = {
    "noise": "half of it would waste more, and larger ones only mean fewer steps",
    "most steps": "smaller ones would only mean more steps",
    "fewest steps": "larger ones would leave less than {steps} steps",
    "all": "it cannot be larger than {units}",
}


def chosen_point(curve: NoiseCurve, steps_are_fixed: bool) -> tuple[NoisePoint, str]:
    """The point to propose, and which limit determines it."""
    points = [p for p in curve.points if p.batch_size >= SMALLEST_BATCH] or [curve.points[-1]]
    if not steps_are_fixed:
        points = [p for p in points if p.steps >= FEWEST_STEPS] or points[:1]
        points = [p for p in points if p.steps <= MOST_STEPS] or points[-1:]
    for point in points:
        if curve.excess(point) <= TOLERATED_EXCESS:
            return point, "most steps" if point is points[0] else "noise"
    return points[-1], "all" if points[-1] is curve.points[-1] else "fewest steps"


def _steps(request: Request, epochs: float, batch_size: float) -> ChosenNumber:
    if request.steps is not None:
        return ChosenNumber(request.steps)
    units = request.num_units
    steps = steps_of(epochs, units, batch_size)
    return ChosenNumber(steps, f"{epochs:g} epochs x {units:,} / {batch_size:,.10g}")


def _clip_norm(request: Request) -> ChosenNumber:
    if request.clip_norm is not None:
        return ChosenNumber(request.clip_norm)
    return ChosenNumber(
        CLIP_NORM,
        "gradients are divided by it, so the learning rate fits any clip norm; lower it if nothing "
        "is clipped",
    )


def _learning_rate(request: Request, point: NoisePoint) -> ChosenNumber:
    if request.learning_rate is not None:
        return ChosenNumber(request.learning_rate)
    rate = learning_rate_for(point, request.parameters, request.optimizer, request.momentum)
    name = {"sgd": f"sgd with momentum {request.momentum:g}", "dp_adam": "dp_adam"}
    known = "an unknown number of" if request.parameters is None else f"{request.parameters:,}"
    return ChosenNumber(
        rate,
        f"a first value for {name.get(request.optimizer, request.optimizer)}, {point.steps:,} "
        f"steps and the noise of {known} parameters; the best may be 3 times larger or smaller",
    )
