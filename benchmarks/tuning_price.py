"""What a private search of settings costs: epsilon of a trial against epsilon of the search.

    python benchmarks/tuning_price.py --svg docs/tuning_price.svg

The trials are DP-SGD with 1,000 steps of batches of 1% of the examples, at delta 1e-5. Only numbers
are computed, and nothing is trained. The last columns compare with what the same search costs by
Rényi divergences alone, and with releasing and charging as many trials.
"""

import argparse
import datetime
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from dp_accounting import DpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

import bevel
from bevel.accounting import AccountantFn, calibrate_noise_multiplier, dpsgd_event, epsilon
from bevel.report.axis import axis_of
from bevel.report.line_chart import HEIGHT, WIDTH, Series, line_chart
from bevel.tuning import TrialCount, selection_event

DELTA, RELATION = 1e-5, "ADD_OR_REMOVE_ONE"
STEPS, PROBABILITY = 1000, 0.01
TRIALS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
HIGHEST = 20.0  # in the picture
TABLE = (1.0, 3.0, 8.0)
EXPECTED = (3.0, 10.0, 30.0, 100.0)
DISTRIBUTIONS = ("logarithmic", "geometric", "poisson")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.name,.key{font-weight:600}.page{fill:#fff}"
    ".line{fill:none;stroke-width:2}.rule,.axis{stroke:#d0d7de;fill:none}"
    ".d1{stroke-dasharray:6 4}.d2{stroke-dasharray:2 3}"
    ".s1{stroke:#0969da}.s2{stroke:#bc4c00}.s3{stroke:#1a7f37}.s4{stroke:#8250df}"
    ".s5{stroke:#6e7781}"
)


def trial(noise: float) -> DpEvent:
    return dpsgd_event(noise, STEPS, sampling_prob=PROBABILITY)


def event_at(cost: float) -> DpEvent:
    """One trial with this epsilon."""
    return trial(
        calibrate_noise_multiplier(trial, epsilon=cost, delta=DELTA, neighboring_relation=RELATION)
    )


def cost_of(event: DpEvent, accountant_fn: AccountantFn | None = None) -> float:
    return epsilon(event, delta=DELTA, neighboring_relation=RELATION, accountant_fn=accountant_fn)


def panel(events: Mapping[float, DpEvent], distribution: str) -> str:
    costs = list(events)
    lines = [Series("one trial", costs, costs, 5, 1)]
    for colour, expected in enumerate(EXPECTED, 1):
        count = TrialCount(expected, distribution)
        every = [cost_of(selection_event(event, count)) for event in events.values()]
        found = [cost if cost <= HIGHEST else None for cost in every]
        lines.append(Series(f"{expected:g} trials", costs, found, colour))
    across = axis_of("epsilon of one trial", costs, include=(0.0,))
    up = axis_of("epsilon of the search", (0.0, HIGHEST))
    title = f"{distribution} number of trials"
    return line_chart(
        distribution, title, "epsilon of the search by that of a trial", across, up, lines
    )


def table(events: Mapping[float, DpEvent]) -> str:
    rows = [
        "| epsilon of one trial | mean number of trials | logarithmic | geometric | poisson | "
        "geometric, by Rényi | as many, all charged |",
        "| --- " * 7 + "|",
    ]
    for cost in TABLE:
        for expected in EXPECTED:
            one = events[cost]
            searches = [selection_event(one, TrialCount(expected, name)) for name in DISTRIBUTIONS]
            found = [cost_of(search) for search in searches]
            found.append(cost_of(searches[1], RdpAccountant))
            found.append(cost_of(SelfComposedDpEvent(one, round(expected))))
            rows.append(f"| {cost:g} | {expected:g} | {' | '.join(f'{x:.2f}' for x in found)} |")
    return "\n".join(rows)


def picture(panels: list[str], about: str) -> str:
    """Charts in a row under a key, as one SVG file."""
    width, height, top = len(panels) * WIDTH, HEIGHT + 64, 34
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        re.sub("^<svg ", f'<svg x="{i * WIDTH}" y="{top}" {size} ', chart)
        for i, chart in enumerate(panels)
    ]
    for i, name in enumerate(DISTRIBUTIONS):
        place = f'x="{(i + 1) * WIDTH - 18}" y="{top + 18}" text-anchor="end"'
        parts.append(f'<text class="name" {place}>{name}</text>')
    names = ["one trial alone", *(f"{expected:g} trials on average" for expected in EXPECTED)]
    for i, name in enumerate(names):
        x, style = 78 + 190 * i, f"s{i or 5}{'' if i else ' d1'}"
        parts.append(f'<path class="line {style}" d="M{x} 18h26"/>')
        parts.append(f'<text class="key" x="{x + 34}" y="22">{name}</text>')
    parts.append(f'<text x="78" y="{height - 10}">{about}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="epsilon of a search against epsilon of one trial"><style>{STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--svg", type=Path, default=Path("build/tuning_price.svg"))
    options = parser.parse_args()
    events = {cost: event_at(cost) for cost in TRIALS}
    print(table(events))
    about = (
        f"delta 1e-5; {platform.machine()} CPU, {os.cpu_count()} cores, {datetime.date.today()}, "
        f"bevel {bevel.__version__}"
    )
    print(f"\n{about}")
    options.svg.parent.mkdir(parents=True, exist_ok=True)
    options.svg.write_text(picture([panel(events, name) for name in DISTRIBUTIONS], about))


if __name__ == "__main__":
    main()
