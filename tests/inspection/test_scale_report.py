import json
import math

import numpy as np
import pytest

from bevel.inspection.scale_report import (
    LABEL,
    ScaleReport,
    ScaleRow,
    Speeds,
    extrapolated_row,
    failed_row,
    fit,
    format_seconds,
)

COUNTS = (8, 64, 512)
SHAPES = {
    "stays": lambda n: 7.0,
    "shrinks": lambda n: 100 / n,
    "a ring": lambda n: 5 * (n - 1) / n,
    "grows": lambda n: 3 + 0.25 * n,
    "stays and shrinks": lambda n: 2 + 900 / n,
    "shrinks beside a ring": lambda n: 30 / n + 4 * (n - 1) / n,
    "nothing": lambda n: 0.0,
}


@pytest.mark.parametrize("name", SHAPES)
def test_figures_of_partitioned_programs_are_extrapolated_exactly(name):
    shape = SHAPES[name]
    guess, error = fit(COUNTS, [shape(n) for n in COUNTS])
    np.testing.assert_allclose(guess(4096), shape(4096), rtol=1e-6)
    assert error < 1e-6


def test_noise_does_not_grow():
    guess, error = fit(COUNTS, [3.4, 2.65, 2.52])
    assert 2.0 < guess(4096) < 2.7 and 0 < error < 0.1


def row(n=8, scaling="weak", flops=1e12, sent=1e9, **changed):
    collectives = {
        "all-reduce over data": {"count": 2, "bytes": sent / 2, "sent": sent},
        "all-gather over data+model": {"count": 1, "bytes": 1e6, "sent": 1e6},
    }
    held = dict.fromkeys(("params", "optimizer", "noise", "batch", "other"), 4.0)
    given = {"scaling": scaling, "devices": n, "mesh": {"data": n // 2, "model": 2}, "batch": 4 * n}
    given |= {"extrapolated": False, "held": held, "activations": 1e6, "peak": 2e6}
    given |= {"flops": flops, "traffic": 1e9, "collectives": collectives}
    return ScaleRow(**given | changed)


def test_times_are_work_by_speed():
    speeds = Speeds(flops=1e12, memory=1e9, link={"data": 1e9, "model": 1e6}, latency=0.25)
    t = row().times(speeds)
    assert t["products"] == 1 and t["memory"] == 1
    assert t["links"] == 1e9 / 1e9 + 1e6 / 1e6 + 3 * 0.25  # the slower link of two axes
    assert t["overlapped"] == t["links"] and t["serial"] == 1 + t["links"]
    assert Speeds(link=2.0).of_axes(("data",)) == 2.0
    assert Speeds(link={}).of_axes(()) == math.inf


def report():
    rows = [row(n, s) for n in COUNTS for s in ("weak", "strong")]
    rows += [
        extrapolated_row([r for r in rows if r.scaling == "weak"], "data", 4096, {"data": 2048}, 9)
    ]
    rows += [failed_row("strong", 4096, {"data": 2048, "model": 2}, 32, "no room")]
    return ScaleReport(rows, Speeds(), ["a note"])


def test_extrapolated_rows_are_marked():
    found = report()
    assert found.of("weak")[-1].extrapolated and found.of("weak")[-1].flops == pytest.approx(1e12)
    text = str(found)
    assert "~4096" in text and LABEL[:40] in text and "a note" in text
    assert "all-reduce" in text and "100%" in text


def test_plain_data():
    plain = json.loads(json.dumps(report().to_dict()))
    assert plain["label"] == LABEL and plain["rows"][0]["seconds"]["links"] > 0
    assert plain["rows"][0]["sent"] == {"all-reduce": 1e9, "all-gather": 1e6}
    assert plain["rows"][-1]["error"] == "no room"


def test_the_plot_is_an_svg_file(tmp_path):
    path = tmp_path / "scale.svg"
    report().plot(str(path))
    text = path.read_text()
    assert "<svg" in text and text.count("<g") > 20


def test_efficiency_is_relative_to_the_fewest_devices():
    half = row(16, flops=1e15)
    found = ScaleReport([row(8, flops=5e14), half], Speeds(latency=0.0), [])
    first, second = found.rows
    assert found.efficiency(first) == 1
    ratio = first.times(found.speeds)["serial"] / second.times(found.speeds)["serial"]
    assert found.efficiency(second) == pytest.approx(ratio)


@pytest.mark.parametrize(
    "time, text", [(2, "2 s"), (0.5, "500 ms"), (4.2e-6, "4.2 µs"), (1e-9, "1 ns")]
)
def test_seconds(time, text):
    assert format_seconds(time) == text
