"""`bevel plan` proposes what is left out, keeps what is given, and shows the plan."""

import json
import tomllib

import pytest

from bevel.choosing import noise_curve as curves
from bevel.cli import main
from bevel.cli.config import read_config

NUMBERS = ["--delta", "1e-3", "--examples", "100", "--batch-size", "10", "--steps", "5"]


@pytest.fixture(autouse=True)
def fixture_few_points(monkeypatch):
    monkeypatch.setattr(curves, "POINTS_BELOW", 1)
    monkeypatch.setattr(curves, "POINTS_ABOVE", 1)


def table(printed):
    rows = [line.split("│")[1:3] for line in printed.splitlines() if line.count("│") == 3]
    return {name.strip(): value.strip() for name, value in rows}


def proposed(capsys, *words):
    assert main(["plan", "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    return found, {name: choice["value"] for name, choice in found["choices"].items()}


def test_numbers_give_a_table(capsys):
    assert main(["plan", "--epsilon", "4", *NUMBERS]) == 0
    printed = capsys.readouterr().out
    assert table(printed)["budget"] == "epsilon 4 at delta 0.001"
    assert "noise multiplier" in printed
    assert "REPLACE_SPECIAL" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_budget_and_a_size_are_enough(capsys):
    found, values = proposed(capsys, "--epsilon", "4", "--examples", "1000", "--epochs", "4")
    assert values["delta"] == 1e-4
    assert not found["choices"]["batch_size"]["given"]
    assert found["chosen"]["steps"] == values["steps"]
    assert main(["plan", "--epsilon", "4", "--examples", "1000", "--epochs", "4"]) == 0
    printed = capsys.readouterr().out
    assert f"batch_size = {values['batch_size']:g}" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_users_are_the_units(capsys):
    words = ["--epsilon", "4", *NUMBERS]
    words[words.index("--examples")] = "--users"
    found, _ = proposed(capsys, *words)
    assert (found["unit"], found["units"]) == ("user", 100)
    assert main(["plan", *words]) == 0
    assert table(capsys.readouterr().out)["unit of privacy"] == "user"


def test_a_config_gives_its_plan(config_file, capsys):
    assert main(["plan", str(config_file), "--plan.steps=7"]) == 0
    found = table(capsys.readouterr().out)
    assert (found["examples"], found["steps"]) == ("64", "7")


def with_budget(config_file, *without):
    """The config with an epsilon instead of a noise multiplier, and without some keys."""
    lines = config_file.read_text().replace("noise_multiplier = 1.0", "epsilon = 2.0").splitlines()
    kept = [line for line in lines if line.split(" = ")[0] not in without]
    config_file.write_text("\n".join(kept) + "\n")
    return str(config_file)


def test_what_a_config_leaves_out_is_proposed_and_written(config_file, tmp_path, capsys):
    path = with_budget(config_file, "batch_size", "steps", "learning_rate")
    found, values = proposed(capsys, path, "--epsilon", "1.5", "--write", path)
    assert found["units"] == 64
    assert values["epsilon"] == 1.5  # an option has precedence
    assert values["delta"] == 1e-3
    assert found["signal_to_noise"] == pytest.approx(
        1 / (found["chosen"]["noise_per_step"] * 10**0.5)  # 4 x 2 weights and 2 biases
    )
    config = read_config(path)
    assert (config.plan.batch_size, config.plan.steps) == (values["batch_size"], values["steps"])
    assert config.optimizer.learning_rate == values["learning_rate"]
    assert config.optimizer.ema_decay == 0.9  # kept
    assert config.plan.epsilon == 1.5


def test_a_given_size_means_that_no_data_is_read(config_file, tmp_path, capsys):
    path = with_budget(config_file, "batch_size", "steps")
    (tmp_path / "points.npz").unlink()
    found, _ = proposed(capsys, path, "--examples", "500")
    assert found["units"] == 500


def test_the_curve_is_drawn(tmp_path, capsys):
    file = tmp_path / "noise.svg"
    words = ["plan", "--epsilon", "4", "--examples", "300", "--epochs", "4", "--plot", str(file)]
    assert main([*words, "--write", str(tmp_path / "new.toml")]) == 0
    assert "<svg" in file.read_text()
    assert f"wrote {file}" in capsys.readouterr().out
    assert set(tomllib.loads((tmp_path / "new.toml").read_text())) == {"plan", "optimizer"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--epsilon", "4"], 1, "the size of the data is missing: write --examples N"),
        (["--examples", "10"], 1, "epsilon is missing: write --epsilon, such as 3"),
        (["--epsilon", "four", "--examples", "10"], 2, "argument --epsilon: invalid float value"),
        (
            ["--epsilon", "4", "--examples", "10", "--step", "3"],
            2,
            "unknown option --step. Did you mean '--steps'?",
        ),
        (["--epsilon", "4", "--examples", "9", "--users", "9"], 2, "not allowed with argument"),
        (["--epsilon", "4", "--examples", "10", "--batch-size", "11"], 1, "batch_size is 11"),
        (["--epsilon", "4", "--examples", "10", "--mechanism", "blt"], 1, "steps must be given"),
        (["--mechanism", "none", *NUMBERS, "--json"], 1, "--json needs a proposal"),
        (["--noise-multiplier", "1", "--examples", "10"], 1, "batch_size and steps must be given"),
        (["--epsilon", "4", *NUMBERS, "--epochs", "3"], 1, "all given, but any two"),
        (["none.toml"], 1, "no config at none.toml"),
    ],
)
def test_mistakes_are_named(words, code, message, capsys):
    assert main(["plan", *words]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("mechanism", ["bandmf", "blt"])
def test_correlated_noise_is_shown_as_given(mechanism, capsys):
    words = ["--mechanism", mechanism, "--noise-multiplier", "1", "--bands", "2", "--buffers", "2"]
    assert main(["plan", *words, *NUMBERS]) == 0
    assert table(capsys.readouterr().out)["steps"] == "5"
