"""`model_state`: the loss reads it, no step changes it, and a run keeps the one it started with."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import training_runs as runs

from bevel.errors import FixArgumentsError, FixLossError, RestoreCheckpointError
from bevel.sharding import make_mesh
from bevel.training import Augmentation
from bevel.training.contribution import contribution
from bevel.training.data import source_of
from bevel.training.model_state import as_arrays, check_unchanged
from bevel.training.run_description import shared_by_processes


def statistics():
    mean, var = np.full(runs.D, 0.5, np.float32), np.full(runs.D, 2.0, np.float32)
    return {"batch_stats": {"norm": {"mean": mean, "var": var}}}


def normalised(stats, batch):
    norm = stats["batch_stats"]["norm"]
    return {"x": (batch["x"] - norm["mean"][None]) / norm["var"][None], "y": batch["y"]}


def stateful_loss(params, stats, batch, prng):
    return runs.loss(params, normalised(stats, batch), prng)


def trainer(**changed):
    return runs.trainer(**{"loss_fn": stateful_loss} | changed)


def test_the_loss_reads_the_same_state_at_every_step(tmp_path):
    def closed(params, batch, prng):
        return stateful_loss(params, statistics(), batch, prng)

    expected = runs.fit(of=runs.trainer(loss_fn=closed))
    for mesh in (None, make_mesh("data=4,model=2")):
        state = runs.fit(of=trainer(mesh=mesh), model_state=statistics())
        np.testing.assert_allclose(state.params["w"], expected.params["w"], atol=1e-6)
        assert runs.same_bits(state.model_state, statistics())
    assert not runs.same_bits(runs.fit().params, expected.params)


def test_it_has_no_gradient_noise_optimizer_state_or_checkpoint(tmp_path):
    seen = []
    state = runs.fit(
        tmp_path / "run",
        of=trainer(ema_decay=0.9),
        model_state=statistics(),
        evaluate=lambda params: {"leaves": len(jax.tree.leaves(params))},
        callback=lambda state, metrics: seen.append(jax.device_get(state.model_state)),
    )
    for tree in (state.opt_state, state.average, state.params):
        assert [x.shape for x in jax.tree.leaves(tree) if x.ndim] == [(2,), (runs.D, 2)]
    assert all(runs.same_bits(one, statistics()) for one in seen) and len(seen) == 4
    names = {path.name for path in (tmp_path / "run").rglob("checkpoints/*/*")}
    assert not [name for name in names if "batch_stats" in name or "model_state" in name]


def test_a_run_resumes_only_with_the_state_that_it_was_started_with(tmp_path):
    folder = tmp_path / "run"
    runs.fit(folder, of=trainer(), model_state=statistics(), callback=runs.at_step(2))
    other = statistics()
    other["batch_stats"]["norm"]["mean"] += 1
    renamed = {"batch_stats": {"norm": {"mean": other["batch_stats"]["norm"]["mean"][:3]}}}
    losses = {"loss_fn": lambda p, stats, d, k: runs.loss(p, d, k)}
    for given, changed in ((other, {}), (renamed, losses)):
        with pytest.raises(RestoreCheckpointError, match=r"another run.*the model_state differs"):
            runs.fit(folder, of=trainer(**changed), model_state=given)
    with pytest.raises(RestoreCheckpointError, match="the model_state differs"):
        runs.fit(folder)
    state = runs.fit(folder, of=trainer(), model_state=statistics())
    assert runs.same_bits(state, runs.fit(of=trainer(), model_state=statistics()))
    # Its digest could confirm a guess, so only the private half has it.
    digest = json.loads((folder / "private" / "identity.json").read_text())["digests"]
    assert digest["model state"]
    public = [path for path in (folder / "released").rglob("*") if path.is_file()]
    assert not [p for p in public if digest["model state"].encode() in p.read_bytes()]


def test_a_run_without_a_state_does_not_resume_with_one(tmp_path):
    runs.fit(tmp_path / "run", callback=runs.at_step(2))
    with pytest.raises(RestoreCheckpointError, match="the model_state differs"):
        runs.fit(tmp_path / "run", of=trainer(), model_state=statistics())


def test_typed_keys_may_be_anywhere(tmp_path):
    """Among frozen parameters and in the model state, and the loss may draw from them."""

    def loss(params, stats, batch, prng):
        shift = jax.random.normal(stats["key"], (1, runs.D)) + jax.random.normal(params["key"])
        shift += jax.random.normal(stats["keys"][1], (1, runs.D))
        return runs.loss(params, batch | {"x": batch["x"] + shift}, prng)

    begin = runs.params() | {"key": jax.random.key(3)}
    stats = {"key": jax.random.key(1), "keys": jax.random.split(jax.random.key(2))}
    for mesh in (None, make_mesh("data=8")):
        one = trainer(loss_fn=loss, trainable=["w", "b"], mesh=mesh, ema_decay=0.9)
        folder = tmp_path / str(mesh is None)
        given = {"of": one, "begin": begin, "model_state": stats}
        for stop in (4, runs.STEPS):
            state = runs.fit(folder, **given, callback=runs.at_step(stop))
        assert jnp.issubdtype(state.params["key"].dtype, jax.dtypes.prng_key)
        assert jax.random.key_data(state.model_state["key"])[1] == 1
        assert np.asarray(state.params["w"]).any()
        with pytest.raises(RestoreCheckpointError, match="the model_state differs"):
            runs.fit(folder, **given | {"model_state": stats | {"key": jax.random.key(9)}})
        with pytest.raises(RestoreCheckpointError, match="the frozen parameters differ"):
            runs.fit(folder, **given | {"begin": begin | {"key": jax.random.key(9)}})


def test_processes_compare_it_before_they_start():
    one = trainer()
    batches = one._batches(source_of(runs.data()), None, 1)
    shared = [
        shared_by_processes(one, batches, runs.params(), stats, runs.options())
        for stats in (None, {"key": jax.random.key(0)}, {"key": jax.random.key(1)})
    ]
    assert len({found["model state"] for found in shared}) == 3
    assert len({found["initial parameters"] for found in shared}) == 1


def test_a_state_carries_its_own():
    one = trainer()
    state = one.init(runs.params(), model_state=statistics())
    with pytest.raises(FixArgumentsError, match="has a model_state of its own"):
        runs.fit(of=one, begin=state, model_state=statistics())
    stopped = runs.fit(of=one, begin=state, callback=runs.at_step(4))
    ended = runs.fit(of=one, begin=stopped)
    assert runs.same_bits(ended, runs.fit(of=trainer(), model_state=statistics()))
    assert not state.model_state["batch_stats"]["norm"]["mean"].is_deleted()
    mean = np.zeros(runs.D, np.float32)
    moved = dataclasses.replace(state, model_state={"batch_stats": {"norm": {"mean": mean}}})
    assert moved.model_state["batch_stats"]["norm"]["mean"] is mean


def test_leaves_must_be_arrays():
    with pytest.raises(FixArgumentsError, match=r"contains a str at 'act'.*Close over"):
        runs.fit(of=trainer(), model_state={"act": "relu"})
    assert as_arrays({"n": 3})["n"] == 3 and as_arrays(None) is None


# A loss that changes it from data.


def updated(stats, batch):
    norm = stats["batch_stats"]["norm"]
    mean = 0.9 * norm["mean"] + 0.1 * batch["x"].mean(0)
    return {"batch_stats": {"norm": {"mean": mean, "var": norm["var"]}}}


CHANGES = {
    "under its name": lambda stats, new: {"accuracy": 1.0, "model_state": new},
    "a part under its name": lambda stats, new: {"model_state": {"x": new["batch_stats"]["norm"]}},
    "as it is": lambda stats, new: new,
    "beside metrics": lambda stats, new: {"accuracy": 1.0} | new,
    "in a tuple": lambda stats, new: (jnp.float32(1.0), new),
    "under another name": lambda stats, new: {"updates": new},
    "its collection": lambda stats, new: {"new": new["batch_stats"]},
    "in another precision": lambda stats, new: jax.tree.map(lambda x: x.astype(jnp.bfloat16), new),
}


@pytest.mark.parametrize("made", CHANGES.values(), ids=CHANGES.keys())
def test_a_loss_that_returns_another_state_is_refused(made):
    def loss(params, stats, batch, prng):
        value, _ = stateful_loss(params, stats, batch, prng)
        return value, made(stats, updated(stats, batch))

    said = "released without noise. Use GroupNorm or LayerNorm"
    with pytest.raises(FixLossError, match=said):
        runs.fit(of=trainer(loss_fn=loss), model_state=statistics())


def test_the_loss_of_views_and_users_is_checked_too():
    def loss(params, stats, batch, prng):
        return jnp.float32(0), updated(stats, batch)

    views = Augmentation(lambda data, key: data, views=2)
    for by_user, augmentation in ((False, views), (True, None)):
        made = contribution(loss, by_user, augmentation)
        batch = {"x": jnp.ones((1, runs.D))}, jnp.zeros(1, bool)
        with pytest.raises(FixLossError, match="released without noise"):
            made({}, ({}, as_arrays(statistics())), batch, jax.random.key(0))


MEAN = jnp.ones(3)
NO_CHANGES = {
    "metrics": ({"batch_stats": {"mean": MEAN}}, {"accuracy": jnp.ones(())}),
    "as it was passed": (
        {"stats": {"mean": MEAN, "n": MEAN}},
        {"stats": {"mean": MEAN, "n": MEAN}},
    ),
    "under its name, as it was passed": ({"mean": MEAN}, {"model_state": {"mean": MEAN}}),
    "one name in common": ({"temperature": jnp.ones(())}, {"temperature": jnp.zeros(())}),
    "a number each": (jnp.ones(()), jnp.zeros(())),
    "pairs without names": ((jnp.ones(()), MEAN), (jnp.zeros(()), MEAN + 1)),
    "other shapes": ({"a": {"mean": MEAN}}, {"a": {"mean": jnp.ones(4)}}),
    "an empty state": ({}, {"accuracy": jnp.ones(())}),
    "no state": (None, {"model_state": MEAN}),
    "no metrics": ({"a": {"mean": MEAN}}, {}),
}


@pytest.mark.parametrize("state, aux", NO_CHANGES.values(), ids=NO_CHANGES.keys())
def test_metrics_are_not_taken_for_a_state(state, aux):
    check_unchanged(aux, state)


def test_an_empty_state_is_passed_to_the_loss():
    def loss(params, stats, batch, prng):
        assert stats == {}
        return runs.loss(params, batch, prng)

    assert runs.same_bits(runs.fit(of=trainer(loss_fn=loss), model_state={}), runs.fit())
