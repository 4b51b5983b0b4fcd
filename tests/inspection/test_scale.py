"""Predicted scaling, compiled in separate processes."""

import importlib

import pytest
import scaled_steps

from bevel.errors import FixArgumentsError
from bevel.inspection.scale import compiled_counts, notes_of, parse_target, scale, target_of

scale_module = importlib.import_module("bevel.inspection.scale")
TENSOR = {"up": [None, None, "model"], "down": [None, "model"]}
AXES = "data=-1,model=2"


@pytest.mark.full
def test_extrapolated_rows_equal_compiled_rows():
    options = {"axes": AXES, "batch_size": 64, "spec": TENSOR}
    guessed = scale(scaled_steps.build, devices=(4, 8, 16, 32), compile_up_to=16, **options)
    compiled = scale(scaled_steps.build, devices=(4, 32), **options)
    assert [r.devices for r in guessed.of("weak")] == [4, 8, 16, 32]
    for scaling, batch in (("weak", 512), ("strong", 64)):
        guess, truth = guessed.of(scaling)[-1], compiled.of(scaling)[-1]
        assert guess.extrapolated and not truth.extrapolated
        assert guess.mesh == truth.mesh == {"data": 16, "model": 2}
        assert guess.batch == truth.batch == batch
        assert guess.flops == pytest.approx(truth.flops, rel=0.01)
        assert guess.held == pytest.approx(truth.held, rel=0.01)
        assert guess.activations == pytest.approx(truth.activations, rel=0.1)
        for name, figures in truth.collectives.items():
            assert guess.collectives[name] == pytest.approx(figures, rel=0.01)
    assert any("extrapolated from [4, 8, 16]" in note for note in guessed.notes)
    # Weak scaling keeps the FLOPs of a device, strong scaling divides them.
    assert len({r.flops for r in compiled.of("weak")}) == 1
    assert compiled.of("strong")[1].flops == compiled.of("strong")[0].flops / 8


@pytest.mark.full
def test_involuntary_rematerialisation_is_reported():
    report = scale(
        scaled_steps.build_badly_moved,
        axes={"data": -1, "model": 2, "more": 2},
        batch_size=16,
        devices=(8,),
    )
    (note,) = [note for note in report.notes if "rematerialisation" in note]
    assert note.startswith("8 devices") and "f32[" in note
    assert "sharding_constraint" in note or "sin" in note


def answering(monkeypatch, answer):
    monkeypatch.setattr(scale_module, "run_worker", lambda request, timeout: (answer(request), ""))


def test_a_step_that_fails_everywhere_is_an_error(monkeypatch):
    answering(monkeypatch, lambda r: {str(b): {"error": "Oh: no"} for b in r["batches"]})
    with pytest.raises(FixArgumentsError, match=r"all of \[2, 4\] devices.*Oh: no"):
        scale(scaled_steps.build, axes="data=-1", batch_size=8, devices=(2, 4))


def canned(request):
    """A step whose batch is split over the first axis, and fits only if that divides it."""
    found = {}
    for batch in request["batches"]:
        n = request["devices"]
        held = dict.fromkeys(("params", "optimizer", "noise", "other"), 8.0)
        figures = dict.fromkeys(("activations", "peak", "flops", "traffic"), batch / n)
        found[str(batch)] = {"held": held | {"batch": batch / n}, "collectives": {}} | figures
        if batch % n:
            found[str(batch)] = {"error": "IndivisibleError: no"}
    return found


def test_rows_that_do_not_fit_are_noted(monkeypatch):
    answering(monkeypatch, canned)
    report = scale(
        scaled_steps.build,
        axes="data=-1",
        batch_size=16,
        devices=(2, 4, 8, 32, 64),
        compile_up_to=32,
    )
    assert [r.error is None for r in report.of("weak")] == [True] * 5
    assert [r.error is None for r in report.of("strong")] == [True, True, True, False, False]
    assert any("32 devices, batch 16 does not fit: Indiv" in note for note in report.notes)
    assert any("64 devices, batch 16 does not fit: data has size" in note for note in report.notes)
    assert "does not fit" in str(report)


def test_a_process_that_dies_says_why():
    with pytest.raises(FixArgumentsError, match="No module named 'nowhere'"):
        scale("nowhere:build", axes="data=-1", batch_size=8, devices=(2,))
    with pytest.raises(FixArgumentsError, match="larger timeout"):
        scale(scaled_steps.build, axes=AXES, batch_size=8, devices=(2,), timeout=0.01)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"axes": {"data": 8}}, "the size -1"),
        ({"axes": "data=-1,model=-1"}, "the size -1"),
        ({"devices": ()}, "positive"),
        ({"batch_size": 0}, "positive"),
        ({"devices": (3,), "axes": AXES}, "is not a multiple of the 2"),
        ({"build_step": lambda mesh, batch: None}, "top level of a module"),
        ({"build_step": "no_colon"}, "file.py:function"),
        ({"devices": (64,), "compile_up_to": 2}, "raise compile_up_to"),
    ],
)
def test_wrong_arguments_say_what_to_write(options, message):
    given = {"build_step": scaled_steps.build, "axes": "data=-1", "batch_size": 8}
    with pytest.raises(FixArgumentsError, match=message):
        scale(**given | {"devices": (8,)} | options)


def test_three_counts_are_compiled_to_extrapolate_from():
    assert compiled_counts([8, 64, 512, 4096], 1, 512) == [8, 64, 512]
    assert compiled_counts([4096], 8, 512) == [32, 128, 512]
    assert compiled_counts([8], 1, 512) == [8]


def test_functions_are_named_so_that_another_process_finds_them():
    assert target_of(scaled_steps.build) == f"{scaled_steps.__file__}:build"
    assert target_of(compiled_counts) == "bevel.inspection.scale:compiled_counts"
    assert parse_target("a.b:c") == {"module": "a.b", "name": "c"}
    assert parse_target("/x/y.py:c") == {"file": "/x/y.py", "name": "c"}


def test_what_could_not_be_read_is_noted():
    found = {"8": {"unknown_loops": 2, "unread_products": ["__cudnn$conv"]}}
    notes = notes_of(4, found, "")
    assert "2 collectives are in loops of unknown length" in notes[0]
    assert "__cudnn$conv" in notes[1]
    older = (
        "E spmd.cc:1] [spmd] Involuntary full rematerialization. The compiler was not able to go"
    )
    assert "1 times" in notes_of(4, {}, older)[0]
