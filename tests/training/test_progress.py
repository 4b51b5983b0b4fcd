"""Progress is shown as plain lines without a terminal, and raw metrics are marked."""

import io

from bevel.training.progress import Progress, format_number

METRICS = {"step": 4, "epsilon": 1.25, "delta": 1e-5, "attempt": 0, "accuracy": 0.9}
RAW = {"loss": 0.5, "clipped_fraction": 0.25, "signal_to_noise": float("nan"), "batch_size": 7}


def shown(**options):
    file = io.StringIO()
    with Progress(8, file=file, **options) as progress:
        progress.note("3 programs [compiled]")
        progress.advance(3)
        progress.released(METRICS, RAW)
    return file.getvalue()


def test_lines_say_what_is_spent_and_left_and_mark_what_is_not_private():
    note, line = shown(budget=3.0).splitlines()
    assert note == "3 programs [compiled]"
    public, raw = line.split(" | not private: ")
    assert public == "step 4/8 | epsilon 1.25, 1.75 left, accuracy 0.9"
    assert raw == "loss 0.5, clipped_fraction 0.25, signal_to_noise -"


def test_nothing_is_shown_where_nothing_is_asked_for():
    assert shown(show=False) == ""


def test_a_terminal_has_a_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(budget=3.0)
    assert "step" in text and "epsilon 1.25" in text and "not private" in text


def test_numbers_are_short():
    assert [format_number(x) for x in (0.12345, 12.0, 12345.6, None, float("inf"))] == [
        "0.123", "12", "12346", "-", "unlimited",
    ]  # fmt: skip
