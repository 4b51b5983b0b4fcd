"""Events as a ledger writes them: each kind, random ones, and a cost that needs no accountant."""

import itertools
import json
import math

import numpy as np
from hypothesis import strategies as st

from bevel.accounting.ledger import event_from_json

NOTHING, ALL = {"kind": "NoOpDpEvent"}, {"kind": "NonPrivateDpEvent"}


def gaussian(noise):
    return {"kind": "GaussianDpEvent", "noise_multiplier": noise}


def zcdp(rho, xi=0.0):
    return {"kind": "ZCDpEvent", "rho": rho, "xi": xi}


def poisson(chance, noise=1.0):
    event = gaussian(noise)
    return {"kind": "PoissonSampledDpEvent", "sampling_probability": chance, "event": event}


def fixed(size, batch, noise=1.0, kind="SampledWithoutReplacementDpEvent"):
    event = gaussian(noise)
    return {"kind": kind, "source_dataset_size": size, "sample_size": batch, "event": event}


def truncated(size, chance, cap, noise=1.0):
    return {
        "kind": "TruncatedSubsampledGaussianDpEvent",
        "dataset_size": size,
        "sampling_probability": chance,
        "truncated_batch_size": cap,
        "noise_multiplier": noise,
    }


def bins(noise, iterations, cycle=2, strategy=(1.0,)):
    return {
        "kind": "BallsInBinsDpEvent",
        "noise_multiplier": noise,
        "iterations": iterations,
        "cycle_length": cycle,
        "strategy": list(strategy),
    }


def allocation(noise, iterations, uses=1):
    return {
        "kind": "RandomAllocationDpEvent",
        "noise_multiplier": noise,
        "iterations": iterations,
        "total_participations": uses,
    }


def search(event, mean=10.0, shape=1.0):
    return {"kind": "RepeatAndSelectDpEvent", "event": event, "mean": mean, "shape": shape}


def often(event, count):
    return {"kind": "SelfComposedDpEvent", "event": event, "count": count}


def composed(*events):
    return {"kind": "ComposedDpEvent", "events": list(events)}


def renyi_2(event):
    """Rényi divergence of order 2 of neighbours that differ in one added record, in closed form."""
    kind = event["kind"]
    if kind in ("NoOpDpEvent", "NonPrivateDpEvent"):
        return math.inf if kind == "NonPrivateDpEvent" else 0.0
    if kind == "ZCDpEvent":
        return event["xi"] + 2 * event["rho"]
    if kind == "GaussianDpEvent":
        return 1 / event["noise_multiplier"] ** 2
    if kind == "PoissonSampledDpEvent":
        chance, noise = event["sampling_probability"], event["event"]["noise_multiplier"]
        return math.log1p(chance**2 * math.expm1(1 / noise**2))
    # Mixtures of shifts s_i, all equally likely: the mean of exp(<s_i, s_j> / noise^2).
    if kind == "RandomAllocationDpEvent":
        steps = range(event["iterations"])
        chosen = list(itertools.combinations(steps, event["total_participations"]))
        shifts = np.array([[float(step in each) for step in steps] for each in chosen])
    else:
        shifts = event_from_json(event).shifts()
    products = shifts @ shifts.T / event["noise_multiplier"] ** 2
    return math.log(np.mean(np.exp(products)))


columns = st.sampled_from([(1.0,), (1.0, 0.5)])
noise = st.sampled_from([0.5, 1.0, 1.0 + 1e-12, 1.5, 2.0, 4.0])
single = st.one_of(
    st.just(NOTHING),
    st.builds(gaussian, noise),
    st.builds(zcdp, st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.0, 0.2])),
    st.builds(poisson, st.sampled_from([0.0, 0.1, 0.5, 1.0]), noise),
    st.builds(bins, noise, st.integers(1, 5), st.integers(1, 3), columns),
    st.builds(allocation, noise, st.integers(2, 4), st.integers(1, 2)),
)
event = st.lists(st.builds(often, single, st.integers(0, 4)), max_size=4).map(
    lambda parts: composed(*parts)
)


def total(counts):
    return sum(count * renyi_2(json.loads(text)) for text, count in counts.items() if count)
