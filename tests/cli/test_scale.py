"""`bevel scale` estimates the step of a config without running it."""

import json

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.cli import main, scale
from bevel.cli.config import read_config
from bevel.inspection.scale_report import ScaleReport, Speeds
from bevel.sharding import make_mesh


def test_the_step_compiles_with_every_copy_of_a_parameter_placed_alike(config_file):
    text = config_file.read_text().replace("cpu_devices = 8", 'rules = "tensor"')
    config_file.write_text(text)
    mesh = make_mesh("data=4,model=2")
    step = scale.build_step(mesh, 16, config=str(config_file))
    jax.jit(step.function).lower(*step.arguments.values()).compile()
    weights = [
        leaf
        for role in ("params", "optimizer", "other")
        for leaf in jax.tree.leaves(step.arguments[role])
        if leaf.shape == (4, 2)
    ]
    assert len(weights) == 3  # with momentum and average
    assert {leaf.sharding for leaf in weights} == {NamedSharding(mesh, P("model"))}


def test_a_config_is_scaled_along_its_batch(config_file, monkeypatch, capsys):
    passed = {}

    def fake_scale(build, **options):
        passed.update(options, build=build)
        with options["on_compile"]("compiling for 16 devices (1 of 2)"):
            return ScaleReport([], Speeds(), ["a note"])

    monkeypatch.setattr("bevel.sharding.scale", fake_scale)
    line = ["scale", str(config_file), "--devices", "16,32"]
    assert main(line) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Weak scaling") and printed.out.endswith("a note\n")
    assert printed.err == "compiling for 16 devices (1 of 2) ...\n"
    assert main([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["notes"] == ["a note"]
    assert main([*line, "--json", str(config_file.parent / "scale.json")]) == 0
    assert json.loads((config_file.parent / "scale.json").read_text()) == data
    assert capsys.readouterr().out.startswith("Weak scaling")
    assert passed["build"] == "bevel.cli.scale:build_step"
    assert passed["axes"] == "data=-1,model=2"
    assert (passed["batch_size"], passed["devices"]) == (16, (16, 32))
    assert passed["spec"] == {"config": str(config_file)}


def test_a_batch_is_rounded_up_to_the_mesh(config_file):
    config = read_config(config_file)
    assert scale.divisible_batch_size(config, "data=-1,model=2", 48) == 24


@pytest.mark.parametrize("given", [["m:f"], [], ["--devices", "x", "m:f"]])
def test_wrong_usage(given):
    assert main(["scale", *given]) == 2


def test_spec_is_for_functions_only(config_file, capsys):
    assert main(["scale", str(config_file), "--spec", '{"width": 2}']) == 2
    assert "change the config instead" in capsys.readouterr().err
