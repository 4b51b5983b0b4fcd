"""Progress fits every terminal, and is plain without one."""

import io
import re

import pytest
from rich.console import Console

from bevel.accounting import Budget
from bevel.training import Progress
from bevel.training.terminal_progress import PlainProgress, TerminalProgress, progress_of

METRICS = {"step": 4, "epsilon": 1.25, "delta": 1e-5, "attempt": 0, "test_accuracy": 0.9}
MANY = METRICS | {f"test_metric_number_{i}": 0.1 * i for i in range(9)}
BUDGET = Budget(3, 1e-5)


def run(progress, steps=8, metrics=METRICS):
    with progress.working("compiling for batches of 512"):
        pass
    progress.begin(0, steps, BUDGET)
    progress.advance(4)
    progress.checkpoint(metrics)
    progress.raw({"loss": 0.52, "clipped_fraction": 1.0})
    progress.warn("the loss is high")
    progress.end()


def terminal(width, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    return TerminalProgress(file, console=console), console


def lines_of(progress, console):
    return [segment.text.rstrip() for segment in console.render(progress) if segment.text.strip()]


def test_plain_lines_have_one_format():
    file = io.StringIO()
    run(PlainProgress(file))
    assert file.getvalue().splitlines() == [
        "compiling for batches of 512 ...",
        "step 4/8, epsilon 1.25 of 3, test accuracy 0.9",
        "warning (not private): the loss is high",
    ]


def test_plain_lines_show_no_raw_metrics_and_have_at_most_80_columns():
    file = io.StringIO()
    progress = PlainProgress(file)
    run(progress, metrics=MANY)
    progress.note("a long remark " * 20)
    assert "0.52" not in file.getvalue()
    assert max(map(len, file.getvalue().splitlines())) <= 80


@pytest.mark.parametrize("width", [120, 80, 60, 40, 20, 5])
def test_a_terminal_shows_two_lines_that_fit(width):
    progress, console = terminal(width)
    progress.begin(0, 100_000, BUDGET)
    progress.advance(40_000)
    progress.checkpoint(MANY)
    progress.raw({"loss": 0.52})
    text = "".join(segment.text for segment in console.render(progress))
    lines = text.rstrip("\n").split("\n")
    assert len(lines) == 2 and max(map(len, lines)) <= width
    with progress.working("compiling for batches of 512 and of some more"):
        working = "".join(segment.text for segment in console.render(progress)).rstrip("\n")
    assert len(working.split("\n")) == 2
    assert max(map(len, working.split("\n"))) <= width
    progress.end()


def test_a_terminal_shows_bar_steps_time_epsilon_and_metrics():
    progress, console = terminal(80)
    progress.begin(0, 100, BUDGET)
    assert "-:-- left" in "".join(lines_of(progress, console))
    progress.advance(40)
    progress.checkpoint(METRICS)
    progress.raw({"loss": 0.52})
    bar, *rest = "".join(s.text for s in console.render(progress)).splitlines()
    assert re.fullmatch(r"step 40/100 ━{50,} \d+:\d\d left", bar)
    assert rest == ["epsilon 1.25 of 3, test accuracy 0.9 | not private: loss 0.52"]
    progress.advance(100)
    assert "step 100/100" in lines_of(progress, console)[0]
    assert any(" in 0:00" in line for line in lines_of(progress, console))
    progress.end()


def test_narrow_terminals_lose_raw_metrics_first_and_epsilon_last():
    progress, console = terminal(40)
    progress.begin(0, 100, BUDGET)
    progress.checkpoint(METRICS)
    progress.raw({"loss": 0.52})
    text = "".join(s.text for s in console.render(progress))
    assert "epsilon 1.25 of 3, test accuracy 0.9" in text and "loss" not in text
    progress.end()


def test_work_is_shown_while_it_lasts_and_long_work_leaves_a_line(monkeypatch):
    progress, console = terminal(80)
    with progress.working("compiling for batches of 512"):
        assert "compiling for batches of 512 0 s" in "".join(lines_of(progress, console))
        monkeypatch.setattr("bevel.training.terminal_progress._WORTH_A_LINE", 0.0)
    assert lines_of(progress, console) == []
    console.file.flush()
    written = console.file.buffer.getvalue().decode()
    assert "compiling for batches of 512: 0.0 s" in written


def test_terminals_without_unicode_get_ascii():
    progress, console = terminal(60, encoding="ascii")
    progress.begin(0, 10, None)
    progress.advance(5)
    text = "".join(segment.text for segment in console.render(progress))
    with progress.working("compiling"):
        text += "".join(segment.text for segment in console.render(progress))
    assert text.isascii() and "###" in text
    progress.end()


def test_a_finished_run_shows_no_bar():
    progress, console = terminal(60)
    progress.begin(8, 8, BUDGET)
    assert lines_of(progress, console) == []
    progress.end()


class Closed(io.StringIO):
    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_closed_does_not_stop_the_run():
    run(PlainProgress(Closed()))
    file = Closed()
    console = Console(file=file, force_terminal=True, width=80)
    run(TerminalProgress(file, console=console))


def test_the_option_chooses_what_is_shown():
    own = Progress()
    assert progress_of(own) is own
    assert type(progress_of(False)) is Progress
    for shown in (None, True):
        assert isinstance(progress_of(shown, io.StringIO()), PlainProgress)
