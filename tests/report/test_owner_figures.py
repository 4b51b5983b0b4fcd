from bevel.report.owner_figures import owner_figures


def test_figures_are_those_of_signal_clipping_batches_loss_and_speed(raw_lines):
    found = {figure.id: figure for figure in owner_figures(raw_lines)}
    assert list(found) == [
        "raw-signal",
        "raw-clipped",
        "raw-norms",
        "raw-batch",
        "raw-loss",
        "raw-speed",
    ]
    assert list(found["raw-speed"].series[0].x) == [1, 3, 5, 7, 9]
    labels = [series.label for series in found["raw-norms"].series]
    assert labels == ["0.9 quantile", "median", "0.1 quantile", "clip norm"]
    assert list(found["raw-batch"].series[0].y) == [line["batch_size"] for line in raw_lines]
    signal, level = found["raw-signal"].series
    assert list(signal.y) == [line["signal_to_noise"] for line in raw_lines]
    assert list(level.y) == [1, 1] and level.dash
    assert owner_figures([]) == []


def test_what_is_not_finite_is_left_out(raw_lines):
    raw_lines[3] |= {"loss": None, "norm_quantiles": [None, None, None]}
    found = {figure.id: figure for figure in owner_figures(raw_lines)}
    assert 3 not in found["raw-loss"].series[0].x and len(found["raw-loss"].series[0].x) == 9
    assert 3 not in found["raw-norms"].series[0].x


def test_long_runs_say_that_points_were_left_out(raw_lines):
    many = [raw_lines[0] | {"step": s, "loss": float(s % 7)} for s in range(2000)]
    captions = {figure.id: figure.caption for figure in owner_figures(many)}
    assert "The lowest and highest of neighbouring steps." in captions["raw-loss"]
    captions = {figure.id: figure.caption for figure in owner_figures(raw_lines)}
    assert "neighbouring steps" not in captions["raw-loss"]
