"""What the owner's page says in words: dropped examples, and where time went."""

from collections.abc import Mapping, Sequence
from typing import Any

from bevel.report.bar_chart import bar_chart
from bevel.report.figure import Figure, is_number
from bevel.report.run_files import Line, RunFiles
from bevel.report.settings import known

# Parts of `seconds_by_part` in private/run.json, in the order of the page.
PARTS = {
    "compiling": "compiling",
    "waiting_for_data": "waiting for data",
    "steps": "steps",
    "checkpoints": "checkpoints and evaluation",
    "epsilon": "computing ε",
}


def dropped_examples(rows: Sequence[Line]) -> str | None:
    """A warning if examples had non-finite gradients, which do not take part in training."""
    counted = [row for row in rows if is_number(row.get("not_finite"))]
    dropped = sum(row["not_finite"] for row in counted)
    if not dropped:
        return None
    drawn = sum(row["batch_size"] for row in counted if is_number(row.get("batch_size")))
    steps = sum(row["not_finite"] > 0 for row in counted)
    share = f"{100 * dropped / drawn:.2g}% of the examples" if drawn else f"{dropped:g} examples"
    return (
        f"{share} in the batches were dropped, because their gradients were NaN or infinite "
        f"({dropped:g} of {drawn:g} in {steps} of {len(counted)} steps). The model learns nothing "
        "from them. Look for missing values in the data, or for a loss that overflows."
    )


def times(run: RunFiles) -> list[tuple[str, str]]:
    """Times and speed of the run."""
    record = run.private_record or {}
    rates = [r for row in run.raw or () if is_number(r := row.get("examples_per_second"))]
    return [
        ("Began", known(record.get("started"))),
        ("Resumed", str(record.get("resumed") or "no")),
        ("Ended", str(record.get("finished") or "not yet")),
        ("Steps taken", known(record.get("steps_taken"))),
        ("Time since it was last started", _seconds(record, "seconds")),
        ("Of this, waiting for data", _seconds(record, "seconds_waiting_for_data")),
        ("Examples per second, last", f"{rates[-1]:,.0f}" if rates else "not recorded"),
        ("Programs compiled", known(record.get("programs_compiled"))),
        ("Program", known(record.get("program"))),
    ]


def where_time_went(run: RunFiles) -> Figure | None:
    """The parts of the time since the run was last started. None if they were not recorded."""
    found = (run.private_record or {}).get("seconds_by_part")
    if not isinstance(found, Mapping):
        return None
    parts = [(name, found[key]) for key, name in PARTS.items() if is_number(found.get(key))]
    total = sum(value for _, value in parts)
    if not total > 0:
        return None
    bars = [
        (name, float(value), f"{value:.3g} s, {100 * value / total:.0f} %") for name, value in parts
    ]
    title = "Where time went"
    caption = f"{total:.4g} s since the run was last started, compilation included."
    return Figure("time-parts", title, bar_chart("time-parts", title, bars), caption)


def _seconds(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return f"{value:.3f} s" if is_number(value) else "not recorded"
