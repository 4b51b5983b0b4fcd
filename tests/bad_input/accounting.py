"""`bevel.accounting`, with events that cost little to bound."""

import tempfile
from pathlib import Path

import dp_accounting
import numpy as np
from bad_input.domains import (
    ANYTHING,
    AT_LEAST_0,
    FLAG,
    FUNCTION,
    INSIDE,
    PATH,
    POSITIVE,
    PROBABILITY,
    Domain,
    array,
    either,
    instance,
    integer,
    number,
    one_of,
    optional,
    sequence,
)
from bad_input.rows import row

from bevel import accounting as acc
from bevel.batch_selection import BallsInBinsSampling

COUNT = integer(1)
STEPS = {"noise_multiplier": (AT_LEAST_0, 1.0), "iterations": (COUNT, 4)}
RELATION = either(one_of("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"))
STRATEGY = either(sequence(number()) | array("fiu", (1, 2)))
EVENT = dp_accounting.GaussianDpEvent(3.0)
SAMPLING = acc.MonteCarlo(1000, 1e-3, 5)
CHARGED = {
    "neighboring_relation": (RELATION, "REPLACE_SPECIAL"),
    "accountant_fn": (optional(FUNCTION), None),
}
BUDGET = {"epsilon": (either(POSITIVE), 2.0), "delta": (either(INSIDE), 1e-3)}
BYTES = Domain("bytes", lambda v: isinstance(v, bytes) and (len(v) > 0) and None)
THERE = Path("the ledger that is there")
ONLY_EVENT = either(instance(dp_accounting.DpEvent))


def _gaussian(value: float) -> dp_accounting.DpEvent:
    return dp_accounting.GaussianDpEvent(float(value))


def _steps(count: int) -> dp_accounting.DpEvent:
    return dp_accounting.SelfComposedDpEvent(EVENT, count)


def _new_ledger(**options):
    with tempfile.TemporaryDirectory() as folder:
        acc.Ledger.open(Path(folder) / "ledger.jsonl", **options).close()


def _read(path, full):
    """Reads a ledger that is there if no path is given."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "ledger.jsonl"
        acc.Ledger.open(there, unit="example", relation="REPLACE_ONE").close()
        acc.Ledger.read(there if path is THERE else path, full=full)


def _is_infinite(value):
    """Whether it is an infinite number; nothing is promised about types other than float."""
    infinite = isinstance(value, float) and value == float("inf")
    return (True if type(value) is float else None) if infinite else False


ROWS = [
    row(
        "dpsgd_event",
        acc.dpsgd_event,
        sampling_prob=(PROBABILITY, 0.1),
        use_zcdp=(FLAG, False),
        **STEPS,
    ),
    row(
        "dpsgd_event (zCDP)",
        acc.dpsgd_event,
        sampling_prob=(PROBABILITY, 0.1),
        use_zcdp=(FLAG, True),
        **STEPS,
    ),
    row(
        "truncated_dpsgd_event",
        acc.truncated_dpsgd_event,
        sampling_prob=(PROBABILITY, 0.1),
        num_examples=(COUNT, 100),
        truncated_batch_size=(COUNT, 20),
        **STEPS,
    ),
    row(
        "fixed_dpsgd_event",
        acc.fixed_dpsgd_event,
        "dataset_size batch_size",
        dataset_size=(COUNT, 100),
        batch_size=(COUNT, 10),
        replace=(FLAG, False),
        use_zcdp=(FLAG, False),
        **STEPS,
    ),
    row(
        "amplified_bandmf_event",
        acc.amplified_bandmf_event,
        num_bands=(COUNT, 2),
        sampling_prob=(PROBABILITY, 0.1),
        **STEPS,
    ),
    row(
        "truncated_amplified_bandmf_event",
        acc.truncated_amplified_bandmf_event,
        num_bands=(COUNT, 2),
        sampling_prob=(PROBABILITY, 0.1),
        largest_group_size=(COUNT, 50),
        truncated_batch_size=(COUNT, 20),
        **STEPS,
    ),
    row(
        "balls_in_bins_event",
        acc.balls_in_bins_event,
        cycle_length=(COUNT, 2),
        strategy=(STRATEGY, (1.0, 0.5)),
        **STEPS,
    ),
    row(
        "random_allocation_event",
        acc.random_allocation_event,
        "total_participations iterations",
        total_participations=(integer(0), 2),
        **STEPS,
    ),
    row(
        "private_selection_event",
        acc.private_selection_event,
        event=(instance(dp_accounting.DpEvent), EVENT),
        expected_runs=(number(1), 5.0),
        shape=(AT_LEAST_0 | Domain("infinity", _is_infinite), 1.0),
    ),
    row(
        "gaussian_event",
        acc.gaussian_event,
        noise_multiplier=(AT_LEAST_0, 1.0),
        participations=(COUNT, 2),
    ),
    row(
        "zcdp_event",
        acc.zcdp_event,
        noise_multiplier=(AT_LEAST_0, 1.0),
        participations=(COUNT, 2),
    ),
    row(
        "BallsInBinsDpEvent",
        acc.BallsInBinsDpEvent,
        cycle_length=(COUNT, 2),
        strategy=(either(sequence(number())), (1.0, 0.5)),
        **STEPS,
    ),
    row(
        "RandomAllocationDpEvent",
        acc.RandomAllocationDpEvent,
        "total_participations iterations",
        total_participations=(COUNT, 2),
        **STEPS,
    ),
    row(
        "event_of",
        acc.event_of,
        "strategy num_examples",
        sampler=(Domain("a sampler", lambda v: False), BallsInBinsSampling(4, 2)),
        noise_multiplier=(AT_LEAST_0, 1.0),
        num_examples=(ANYTHING, 10),
        neighboring_relation=(RELATION, "REPLACE_SPECIAL"),
        strategy=(STRATEGY, (1.0,)),
    ),
    row(
        "unamplified_event_of",
        acc.unamplified_event_of,
        sampler=(Domain("a sampler", lambda v: False), BallsInBinsSampling(4, 2)),
        noise_multiplier=(AT_LEAST_0, 1.0),
        neighboring_relation=(RELATION, "REPLACE_SPECIAL"),
    ),
    row(
        "MonteCarlo",
        acc.MonteCarlo,
        num_samples=(integer(1, 10**9), 1000),
        failure_probability=(INSIDE, 1e-3),
        seed=(integer(0, 2**128 - 1), 5),
    ),
    row("MonteCarlo.for_delta", acc.MonteCarlo.for_delta, delta=(either(INSIDE), 1e-3)),
    row("Budget", acc.Budget, epsilon=(POSITIVE, 1.0), delta=(INSIDE, 1e-5)),
    row(
        "check_budget",
        acc.check_budget,
        epsilon=(optional(POSITIVE), 1.0),
        delta=(optional(INSIDE), 1e-5),
        num_examples=(optional(COUNT), 100),
    ),
    row(
        "epsilon",
        acc.epsilon,
        "delta",
        event=(ONLY_EVENT, EVENT),
        delta=(INSIDE, 1e-3),
        monte_carlo=(optional(instance(acc.MonteCarlo)), None),
        **CHARGED,
    ),
    row(
        "delta",
        acc.delta,
        "epsilon",
        event=(ONLY_EVENT, EVENT),
        epsilon=(AT_LEAST_0, 1.0),
        monte_carlo=(optional(instance(acc.MonteCarlo)), None),
        **CHARGED,
    ),
    row(
        "epsilon_after_each_step",
        acc.epsilon_after_each_step,
        "delta iterations",
        make_event=(FUNCTION, _steps),
        iterations=(integer(1, 2**27), 3),
        delta=(INSIDE, 1e-3),
        monte_carlo=(optional(instance(acc.MonteCarlo)), None),
        points=(either(integer(1, 10**6)), 2),
        **CHARGED,
    ),
    row(
        "trade_off_curve",
        acc.trade_off_curve,
        event=(ONLY_EVENT, EVENT),
        fpr=(either(optional(sequence(PROBABILITY, 1) | array("fiu"))), np.array([0.1])),
        monte_carlo=(optional(instance(acc.MonteCarlo)), None),
        **CHARGED,
    ),
    row(
        "calibrate_noise_multiplier",
        acc.calibrate_noise_multiplier,
        make_event=(FUNCTION, _gaussian),
        monte_carlo=(optional(instance(acc.MonteCarlo)), None),
        tolerance=(either(POSITIVE), 1e-2),
        **BUDGET,
        **CHARGED,
    ),
    row(
        "calibrate_batch_size",
        acc.calibrate_batch_size,
        make_event=(FUNCTION, _steps),
        num_examples=(either(COUNT), 2),
        **BUDGET,
        **CHARGED,
    ),
    row(
        "calibrate_iterations",
        acc.calibrate_iterations,
        make_event=(FUNCTION, _steps),
        most=(either(COUNT), 2),
        **BUDGET,
        **CHARGED,
    ),
    row(
        "Ledger.open",
        _new_ledger,
        unit=(one_of("example", "user"), "example"),
        relation=(one_of("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"), "REPLACE_ONE"),
        budget=(optional(instance(acc.Budget)), None),
        wait=(ANYTHING, False),
    ),
    row(
        "Ledger.read",
        _read,
        path=(PATH, THERE),
        full=(ANYTHING, False),
    ),
    row(
        "key_commitment",
        acc.key_commitment,
        key=(BYTES, b"x" * 16),
        salt=(BYTES, b"y" * 16),
    ),
    row("event_to_json", acc.event_to_json, event=(ANYTHING, EVENT)),
    row(
        "event_from_json",
        acc.event_from_json,
        written=(ANYTHING, acc.event_to_json(EVENT)),
    ),
]
EXEMPT = {
    "AccountantFn": "a type",
    "new_salt": "has no arguments",
    "LedgerRun": "made by Ledger.run",
}
