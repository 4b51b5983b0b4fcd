"""`bevel.auditing`, without training runs."""

import numpy as np
from bad_input.domains import (
    ANYTHING,
    FLAG,
    INSIDE,
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

from bevel import auditing

COUNT = integer(1)
SEED = optional(integer(0, 2**128))
SCORES = either(sequence(number()) | array("fiu"))
FLAGS = array("b")
SHARE = number(0, 1)
COINS = np.array([True, False])
UNITS = (array("iu", least=0), np.array([3, 5]))
DATA = {"x": np.zeros((4, 2)), "label": np.array([0, 1, 0, 1])}
AUDITOR = auditing.CanaryScoreAuditor([1.0, 2.0, 3.0], [0.0, 1.0, 1.5])
THRESHOLD = (instance(auditing.ThresholdStrategy), auditing.Bonferroni())
DELTA = number(0, 1, "lr")
SIGNIFICANCE = number(1e-300, 1, "l")
BOUND = {"significance": (SIGNIFICANCE, 0.05), "delta": (DELTA, 0.0)}
BOOTSTRAP = (optional(instance(auditing.BootstrapParams)), None)
RECORDS = Domain("records", lambda v: None)

ROWS = [
    row(
        "CanaryScoreAuditor",
        auditing.CanaryScoreAuditor,
        in_canary_scores=(SCORES, [1.0, 2.0]),
        out_canary_scores=(SCORES, [0.0, 1.0]),
    ),
    row(
        "CanaryScoreAuditor.epsilon_clopper_pearson",
        AUDITOR.epsilon_clopper_pearson,
        one_sided=(ANYTHING, True),
        threshold_strategy=THRESHOLD,
        **BOUND,
    ),
    row(
        "CanaryScoreAuditor.epsilon_raw_counts",
        AUDITOR.epsilon_raw_counts,
        min_count=(COUNT, 1),
        delta=(DELTA, 0.0),
        one_sided=(ANYTHING, True),
        bootstrap_params=BOOTSTRAP,
    ),
    row("Explicit", auditing.Explicit, threshold=(either(ANYTHING), 0.5)),
    row(
        "Split",
        auditing.Split,
        threshold_estimation_frac=(SHARE, 0.5),
        seed=(SEED, None),
    ),
    row(
        "MultiSplit",
        auditing.MultiSplit,
        num_samples=(integer(1, 10**6), 10),
        threshold_estimation_frac=(SHARE, 0.5),
        seed=(SEED, None),
    ),
    row(
        "BootstrapParams",
        auditing.BootstrapParams,
        num_samples=(integer(1, 10**7), 10),
        quantiles=(either(PROBABILITY | sequence(PROBABILITY, 1) | array("fiu", (1, 2))), 0.5),
        bias_correction=(FLAG, True),
        acceleration=(FLAG, False),
        seed=(SEED, None),
    ),
    row(
        "BootstrapParams.confidence_interval",
        auditing.BootstrapParams.confidence_interval,
        num_samples=(integer(1, 10**7), 10),
        confidence=(INSIDE, 0.9),
        seed=(SEED, None),
    ),
    row(
        "fewest_canaries",
        auditing.fewest_canaries,
        "epsilon delta significance",
        epsilon=(POSITIVE, 1.0),
        significance=(SIGNIFICANCE, 0.05),
        delta=(DELTA, 0.0),
        threshold_strategy=THRESHOLD,
    ),
    row("Canaries", auditing.Canaries, units=UNITS, held_in=(FLAGS, COINS)),
    row(
        "GradientCanaries",
        auditing.GradientCanaries,
        units=UNITS,
        held_in=(FLAGS, COINS),
        leaf=(array("iu", least=0), np.array([0, 0])),
        index=(array("iu", (2,), least=0), np.array([[0], [1]])),
        paths=(
            either(
                Domain("paths", lambda v: isinstance(v, tuple) and all(type(p) is str for p in v))
            ),
            ("w",),
        ),
    ),
    row(
        "RecordCanaries",
        auditing.RecordCanaries,
        units=UNITS,
        held_in=(FLAGS, COINS),
        records=(RECORDS, {"x": np.zeros((2, 3))}),
    ),
    row(
        "gradient_canaries",
        auditing.gradient_canaries,
        "count num_units",
        params=(RECORDS, {"w": np.zeros(8, np.float32)}),
        count=(integer(2, 2**27), 2),
        num_units=(either(COUNT), 10),
        seed=(SEED, 0),
    ),
    row(
        "record_canaries",
        auditing.record_canaries,
        "num_units",
        records=(RECORDS, {"x": np.zeros((2, 3))}),
        num_units=(COUNT, 10),
        seed=(SEED, 0),
    ),
    row(
        "random_records",
        auditing.random_records,
        data=(RECORDS, DATA),
        count=(either(integer(1, 2**27)), 2),
        seed=(SEED, 0),
    ),
    row(
        "mislabelled_records",
        auditing.mislabelled_records,
        data=(RECORDS, DATA),
        label=(one_of("label"), "label"),
        count=(either(integer(1, 2**27)), 2),
        seed=(SEED, 0),
    ),
]
RUN = "takes a trainer and its data: tests/auditing"
EXEMPT = {
    "ThresholdStrategy": "a base class without arguments",
    "Bonferroni": "has no arguments",
    "audit": RUN,
    "check_sensitivity": RUN,
    "AuditResult": "made by `audit`",
    "SensitivityResult": "made by `check_sensitivity`",
    "read_audit": "reads a folder",
    "plot_audit": "takes the record of an audit",
    "released_traces": "reads a folder",
}
