import json

from bevel.sharding import scale_command
from bevel.sharding.scale_report import Row, ScaleReport

HELD = dict.fromkeys(("params", "optimizer", "noise", "batch", "other"), 1.0)


def test_a_table_a_plot_and_plain_data(tmp_path, capsys, monkeypatch):
    asked = {}

    def scale(build_step, **options):
        asked.update(options, build_step=build_step)
        rows = [
            Row(s, 2, {"data": 2}, 16, False, HELD, 1.0, 1.0, 1.0, 1.0, {})
            for s in ("weak", "strong")
        ]
        return ScaleReport(rows, options["speeds"], [])

    monkeypatch.setattr(scale_command, "scale", scale)
    plot, plain = tmp_path / "s.svg", tmp_path / "s.json"
    scale_command.main(
        [
            *("file.py:build", "--axes", "data=-1,model=2", "--batch-size", "16"),
            *("--devices", "2,4", "--link", "1e9", "--spec", '{"layers": 3}'),
            *("--plot", str(plot), "--json", str(plain)),
        ]
    )
    assert asked["build_step"] == "file.py:build" and asked["devices"] == [2, 4]
    assert asked["axes"] == "data=-1,model=2" and asked["spec"] == {"layers": 3}
    assert "Weak scaling" in capsys.readouterr().out
    assert "<svg" in plot.read_text()
    found = json.loads(plain.read_text())
    assert found["speeds"]["link"] == 1e9 and len(found["rows"]) == 2
