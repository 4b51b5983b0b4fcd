import pytest

from bevel.report import metrics
from bevel.report.baseline import NO_BASELINE, Baseline
from bevel.report.run_files import read_run


def figures_of(run, baseline=NO_BASELINE, with_epsilon=True):
    return {one.id: one for one in metrics.evaluation(run, baseline, with_epsilon)}


def test_accuracies_share_a_figure_and_other_metrics_have_their_own(by_hand, metric_lines):
    metric_lines[-1] |= {"per_class": {"accuracy": 0.5}, "text": "x", "flag": True, "none": None}
    run = read_run(by_hand(metrics=metric_lines))
    found = figures_of(run)
    assert list(found) == ["accuracy", "accuracy-epsilon", "metric-0", "metric-0-epsilon"]
    accuracy, loss = found["accuracy"], found["metric-0"]
    assert [s.label for s in accuracy.series] == ["test_accuracy", "per_class/accuracy"]
    assert loss.title == "test_loss against steps" and len(accuracy.legend) == 2
    assert not loss.legend
    last = dict(metrics.last_metrics(run.metrics))
    assert last == {"test_accuracy": 1, "test_loss": 0.1, "per_class/accuracy": 0.5}


def test_metrics_are_drawn_against_steps_and_against_epsilon(by_hand, metric_lines):
    found = figures_of(read_run(by_hand(metrics=metric_lines)))
    (steps,), (epsilons,) = found["accuracy"].series, found["accuracy-epsilon"].series
    assert list(steps.x) == [2, 4, 6, 8, 10]
    assert list(epsilons.x) == [0.4, 0.8, 1.2, 1.6, 2.0]
    assert list(steps.y) == list(epsilons.y) == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_there_is_no_figure_against_an_epsilon_that_does_not_hold(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines))
    assert list(figures_of(run, with_epsilon=False)) == ["accuracy", "metric-0"]
    lines = [line | {"epsilon": None} for line in metric_lines]
    assert list(figures_of(read_run(by_hand(metrics=lines, at="b")))) == ["accuracy", "metric-0"]


def test_the_baseline_is_a_line_across_the_figure_of_its_metric(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines))
    found = figures_of(run, Baseline({"test_accuracy": 1.25}))
    for id in ("accuracy", "accuracy-epsilon"):
        private, reference = found[id].series
        assert list(reference.y) == [1.25, 1.25] and reference.dash
        assert reference.x[0] <= min(private.x) and reference.x[-1] >= max(private.x)
        assert reference.label == "test_accuracy without privacy: 1.25"
    assert len(found["metric-0"].series) == 1
    labelled = figures_of(run, Baseline({"test_accuracy": 0.975}))["accuracy"].series[1].label
    assert labelled == "test_accuracy without privacy: 97.5 %"


def test_many_metrics_are_bounded_and_counted(by_hand, metric_lines):
    extra = {f"m{i}": 1.0 for i in range(100)} | {f"acc{i}": 0.5 for i in range(100)}
    run = read_run(by_hand(metrics=[line | extra for line in metric_lines]))
    found = figures_of(run)
    assert len(found) == 2 * (1 + metrics.MOST_METRICS)
    assert len(found["accuracy"].series) == metrics.MOST_LINES
    names = metrics.metric_names(run.metrics)
    drawn = metrics.MOST_METRICS + metrics.MOST_LINES
    assert len(names) == 202 and metrics.without_figure(names) == 202 - drawn


def test_speed_is_never_a_metric(by_hand, metric_lines):
    """Lines of before the folder had two halves have one."""
    lines = [line | {"examples_per_second": 9.0} for line in metric_lines]
    run = read_run(by_hand(lines))
    assert "examples_per_second" not in dict(metrics.last_metrics(run.metrics))


@pytest.mark.parametrize(
    ("names", "chosen"),
    [(["loss", "test_acc"], "test_acc"), (["loss", "f1"], "loss"), ([], None)],
)
def test_the_headline_is_the_first_accuracy_or_the_first_metric(names, chosen):
    assert metrics.headline_metric(names) == chosen


def test_only_accuracies_between_0_and_1_are_percentages():
    assert metrics.shown_metric("accuracy", 0.9583) == "95.8 %"
    assert metrics.shown_metric("accuracy", 95.83) == "95.83"
    assert metrics.shown_metric("loss", 0.9583) == "0.9583"
