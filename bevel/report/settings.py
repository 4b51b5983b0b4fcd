"""The settings of a run as rows that can be read without knowing the code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Noise matrices and samplers, by the names that run.json has for them.
MECHANISMS = {
    "Independent": "DP-SGD: independent Gaussian noise at every step",
    "Banded": "BandMF: Gaussian noise that is correlated over a band of steps",
    "Buffered": "BLT: Gaussian noise that is correlated through a few buffers",
}
SAMPLERS = {
    "CyclicPoissonSampling": "Poisson: every {unit} joins each step independently",
    "FixedBatchSampling": "fixed size: a random batch of the same size at every step",
    "BallsInBinsSampling": "balls in bins: every {unit} joins one random step of each cycle",
    "RandomAllocationSampling": "random allocation: every {unit} joins a fixed number of steps",
    "BMinSepSampling": "minimum separation: Poisson, with a pause after each use of the {unit}",
    "MultiOwnerMinSepSampling": "minimum separation for examples that have several owners",
}
MECHANISM, CLIP, SAMPLER = "plan.mechanism.", "plan.clip.", "plan.mechanism.sampler"
NO_NOISE = "none: nothing is protected"
# Tables of a config that have rows of their own, with their captions.
TABLES = {
    "optimizer": "Optimizer",
    "model": "Model",
    "data": "Data",
    "augmentation": "Augmentation",
}

Rows = list[tuple[str, str]]


def setting_tables(record: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """The settings as captions and rows of tables. Values that were not set are left out."""
    settings = record.get("settings") or {}
    tables = [("Privacy mechanism", _mechanism(record)), ("Batches", _batches(record))]
    for prefix, caption in TABLES.items():
        named = [(name.partition(".")[2], v) for name, v in settings.items() if _in(name, prefix)]
        rows = [(words(name), in_words(value)) for name, value in named if _is_set(value)]
        if prefix == "optimizer" and settings.get("optimizer.ema_decay") is None:
            rows += _given(settings, ("EMA decay", "ema_decay"))
        if prefix == "data":
            rows.append(("training records", known((record.get("data") or {}).get("records"))))
        tables.append((caption, rows))
    return [(caption, rows) for caption, rows in tables if rows]


def _in(name: str, prefix: str) -> bool:
    return name.startswith(prefix + ".")


def _is_set(value: Any) -> bool:
    return value is not None and value is not False


def mechanism_in_words(record: Mapping[str, Any]) -> str:
    """The mechanism in a few words, such as 'DP-SGD'."""
    settings = record.get("settings") or {}
    if "plan.mechanism.noise_multiplier" in settings and not _noise(settings):
        return "no noise"
    return _mechanism_name(settings).partition(":")[0]


def _mechanism_name(settings: Mapping[str, Any]) -> str:
    matrix = settings.get("plan.mechanism.strategy")
    return MECHANISMS.get(str(matrix), known(matrix))


def _noise(settings: Mapping[str, Any]) -> Any:
    return settings.get("plan.mechanism.noise_multiplier")


def _mechanism(record: Mapping[str, Any]) -> Rows:
    settings = record.get("settings") or {}
    if not any(name.startswith(MECHANISM) for name in settings):
        return []
    noise = _noise(settings)
    rows = [
        ("mechanism", _mechanism_name(settings) if noise else NO_NOISE),
        ("noise multiplier", in_words(noise) if noise else NO_NOISE),
    ]
    rows += _given(settings, ("clip norm", CLIP + "l2_clip_norm"))
    rows += _given(settings, ("sum of gradients divided by", CLIP + "normalize_by"))
    rows += _given(
        settings,
        ("clip norm adapts, so that this share is not clipped", CLIP + "adaptive.target_quantile"),
        ("bands", "plan.mechanism.strategy.num_bands"),
    )
    rows += [("unit of privacy", known(record.get("unit")))]
    rows += _given(
        settings, ("examples of a user in one batch", "plan.unit.examples_per_user_per_batch")
    )
    rows += [("neighbouring relation", words(known(record.get("relation")).lower()))]
    return rows


def _batches(record: Mapping[str, Any]) -> Rows:
    settings, data = record.get("settings") or {}, record.get("data") or {}
    unit = str(record.get("unit") or "example")
    sampler = settings.get(SAMPLER)
    rows: Rows = []
    if sampler is not None:
        rows.append(("sampling", SAMPLERS.get(str(sampler), str(sampler)).format(unit=unit)))
    rows += _given(
        settings,
        ("sampling probability", SAMPLER + ".sampling_prob"),
        ("batch size", SAMPLER + ".batch_size"),
        ("batches truncated to", SAMPLER + ".truncated_batch_size"),
        ("steps between two uses, at least", SAMPLER + ".min_sep"),
        ("participations", SAMPLER + ".total_participations"),
    )
    if (settings.get(SAMPLER + ".cycle_length") or 1) > 1:
        rows += _given(settings, ("length of a cycle, in steps", SAMPLER + ".cycle_length"))
    size, padded = data.get("expected_batch_size"), data.get("padded_sizes")
    return [
        ("steps", known(record.get("steps"))),
        ("expected batch size", known(size if size is None else f"{size:g}")),
        *rows,
        ("batches padded to", known(", ".join(map(str, padded or [])))),
    ]


def _given(settings: Mapping[str, Any], *names: tuple[str, str]) -> Rows:
    """The rows of those settings that have a value."""
    found = ((label, settings.get(name)) for label, name in names)
    return [(label, in_words(value)) for label, value in found if value is not None]


def change_rows(changes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [known(one.get("step")), known(one.get("name"))]
        + [shown_value(one.get(end)) for end in ("from", "to")]
        for one in changes
    ]


def words(name: str) -> str:
    """A name of code in words: `learning_rate` is 'learning rate'."""
    return name.replace("_", " ").replace(".", " ")


def known(value: Any) -> str:
    return "not recorded" if value in (None, "") else str(value)


def in_words(value: Any) -> str:
    """A value for readers: floats with six digits, lists without brackets, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    return shown_value(value)


def shown_value(value: Any) -> str:
    """A value as run.json has it."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
