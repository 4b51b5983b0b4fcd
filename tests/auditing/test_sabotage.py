"""Deliberate violations are found by an audit, or by a check that each test names.

Every test breaks one place in the code. The honest trainers pass.
"""

import dataclasses
import json
import shutil

import audited_runs as runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.auditing import check_sensitivity, released_traces
from bevel.batch_selection import CyclicPoissonSampling
from bevel.clipping.accumulate import sums as clipped_sums
from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.execution_plan import BLTConfig, DPSGDConfig
from bevel.execution_plan import plan as plan_module
from bevel.noise_addition import gaussian_privatizer
from bevel.sharding import make_mesh, shard_generation
from bevel.training.checkpoint import StateHalves
from bevel.training.loop import Loop
from bevel.training.private_step import PrivateStep

PLANS = {
    "DP-SGD": runs.FULL_BATCH, "sampled DP-SGD": runs.HALF_BATCH, "BandMF": runs.BANDMF,
    "BLT": runs.BLT, "balls in bins": runs.BALLS_IN_BINS, "adaptive clipping": runs.ADAPTIVE,
    "users": runs.USERS,
}  # fmt: skip
ADD_NOISE = PrivateStep.add_noise
ONES = jnp.ones((40, 48))


def on_mesh():
    return {"mesh": make_mesh("data=4,model=2"), "rules": "fsdp"}


@pytest.mark.fast
@pytest.mark.parametrize("mesh", [False, True], ids=["one device", "data=4,model=2"])
@pytest.mark.parametrize("name", PLANS)
def test_honest_trainers_pass(name, mesh):
    result = runs.audited(PLANS[name], **on_mesh() if mesh else {})
    assert result.passed and result.epsilon > result.promised_epsilon / 4


def sabotage_noise(monkeypatch, change):
    """Changes (noised, sums) of every step before anything sees them."""

    def add_noise(self, sums, state, key):
        noised, noise_state = ADD_NOISE(self, sums, state, key)
        return change(noised, sums), noise_state

    monkeypatch.setattr(PrivateStep, "add_noise", add_noise)


@pytest.mark.fast
@pytest.mark.parametrize("name", ["DP-SGD", "sampled DP-SGD"])
def test_half_the_noise(name, monkeypatch):
    sabotage_noise(
        monkeypatch, lambda noised, sums: jax.tree.map(lambda a, b: (a + b) / 2, noised, sums)
    )
    assert not runs.audited(PLANS[name]).passed


@pytest.mark.parametrize("name", ["DP-SGD", "sampled DP-SGD"])
def test_a_leaf_without_noise(name, monkeypatch):
    sabotage_noise(monkeypatch, lambda noised, sums: {**noised, "v": sums["v"]})
    assert not runs.audited(PLANS[name]).passed


def test_the_same_noise_at_every_step(monkeypatch):
    def add_noise(self, sums, state, key):
        first = state.noise_state._replace(step=jnp.zeros_like(state.noise_state.step))
        noised, _ = ADD_NOISE(self, sums, dataclasses.replace(state, noise_state=first), key)
        return noised, state.noise_state

    monkeypatch.setattr(PrivateStep, "add_noise", add_noise)
    assert not runs.audited(runs.HALF_BATCH).passed


def test_one_key_for_two_privatizers_is_refused():
    """By `bevel.noise_addition.keys`, before any noise is drawn."""
    key = jax.random.key(12345, impl="threefry2x32")
    key = jax.random.split(key)[0]
    first, second = (gaussian_privatizer(stddev=1.0, prng_key=key) for _ in range(2))
    first.update(jnp.zeros(3), first.init(jnp.zeros(3)))
    with pytest.raises(FixArgumentsError, match="key"):
        second.update(jnp.zeros(3), second.init(jnp.zeros(3)))


def test_gradients_that_are_not_clipped(monkeypatch):
    def all_ones(norm, clip_norm, clip):
        return jnp.where(norm.upper > 0, jnp.ones_like(norm.upper), 0)

    monkeypatch.setattr(clipped_sums, "coefficients", all_ones)
    assert not runs.audited(runs.FULL_BATCH).passed


def test_one_group_of_parameters_that_is_not_clipped(monkeypatch):
    """Clip norms for each group, of which one is far too large."""
    honest = plan_module.clipped_grad

    def clipped_grad(*arguments, **options):
        return honest(*arguments, **options | {"l2_clip_norm": {"v": 100.0, "w": 1.0}})

    config = dataclasses.replace(runs.FULL_BATCH, rescale_to_unit_norm=False, l2_clip_norm=1.0)
    monkeypatch.setattr(plan_module, "clipped_grad", clipped_grad)
    result = runs.audited(config)
    assert result.epsilon > result.limit
    measured = check_sensitivity(runs.trainer(config), runs.data(), {**runs.params(), "v": ONES})
    assert not measured.passed
    assert {x.parameter for x in measured.movements if x.moved > 1.1} == {"v"}


def test_twice_the_sampling_probability(monkeypatch):
    honest = CyclicPoissonSampling._size

    def doubled(self, step, num_examples, seed):
        twice = dataclasses.replace(self, sampling_prob=2 * self.sampling_prob)
        return honest(twice, step, num_examples, seed)

    monkeypatch.setattr(CyclicPoissonSampling, "_size", doubled)
    assert not runs.audited(runs.HALF_BATCH).passed


def test_fixed_batches_cannot_be_accounted_as_poisson():
    """By `FixedBatchSampling.proven_event`: an event that is not proven for it is refused."""
    with pytest.raises(FixArgumentsError, match="FixedBatchSampling under ADD_OR_REMOVE_ONE"):
        DPSGDConfig.default(100, 10, 5, sampling="fixed", noise_multiplier=1.0)


def test_averaging_noise_that_every_shard_added_before_the_sum(monkeypatch):
    """Noise on each of 4 shards, and a mean over them where a sum should be: half is left."""

    def add_noise(self, sums, state, key):
        drawn = [
            ADD_NOISE(self, sums, state, jax.random.wrap_key_data(
                jax.random.key_data(key) + np.uint32(shard), impl=jax.random.key_impl(key)
            ))
            for shard in range(4)
        ]  # fmt: skip
        noised = [noised for noised, _ in drawn]
        return jax.tree.map(lambda *shards: sum(shards) / 4, *noised), drawn[0][1]

    monkeypatch.setattr(PrivateStep, "add_noise", add_noise)
    assert not runs.audited(runs.FULL_BATCH).passed


@pytest.mark.fast
def test_shards_that_repeat_the_noise_of_their_neighbour(monkeypatch):
    """By `bevel.auditing.repeated_noise`: at single coordinates, nothing is wrong."""
    real = shard_generation.Shard

    def at_the_start(shape, full_shape, starts, *rest):
        return real(shape, full_shape, tuple(s * 0 for s in starts), *rest)

    at_the_start.all_of = real.all_of
    monkeypatch.setattr(shard_generation, "Shard", at_the_start)
    jax.clear_caches()
    # The cache on disk does not see what the compiler calls.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        result = runs.audited(runs.FULL_BATCH, **on_mesh())
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        jax.clear_caches()
    assert not result.passed and result.epsilon <= result.limit
    assert "pairs of coordinates have the same noise at every step" in result.findings[0]


def test_two_parameters_with_one_noise_key(monkeypatch):
    """By `bevel.auditing.repeated_noise`."""

    def shared(noised, sums):
        noise = (noised["w"] - sums["w"]).ravel()[: sums["v"].size].reshape(sums["v"].shape)
        return {**noised, "v": sums["v"] + noise}

    sabotage_noise(monkeypatch, shared)
    assert not runs.audited(runs.FULL_BATCH).passed


@pytest.mark.fast
def test_a_folder_that_is_put_back_is_charged_again_or_refused(tmp_path):
    """By the ledger: released steps get new noise and a new charge. By its anchor, if it has one.

    Without them, the steps would be released twice, with other noise, at the price of once.
    """
    import training_runs

    def put_back(name, **options):
        folder, copy = tmp_path / name, tmp_path / f"{name} copy"
        options = training_runs.options(**options)
        training_runs.fit(folder, options=options, callback=training_runs.at_step(4))
        shutil.copytree(folder, copy)
        training_runs.fit(folder, options=options)
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        return training_runs.fit(folder, options=options)

    ledger = tmp_path / "ledger.jsonl"
    with pytest.warns(UserWarning, match=r"steps 4 to 8 were released.*charged again"):
        put_back("charged", ledger=ledger)
    entries = [json.loads(line)["entry"] for line in ledger.read_text().splitlines()[1:]]
    again = [(e["first"], e["stop"]) for e in entries if e["kind"] == "charge" and e["attempt"]]
    assert again == [(4, 6), (6, 8)]
    with pytest.raises(RestoreLedgerError, match="rolled back"):
        put_back("anchored", anchor=tmp_path / "anchor")


@pytest.mark.fast
def test_noise_buffers_in_a_released_file(monkeypatch, tmp_path):
    honest = Loop.halves
    config = BLTConfig(48, 8, 8, 4, (0.75, 0.25), (0.25, 0.125), noise_multiplier=1.5)
    import training_runs

    def fit(folder):
        of = training_runs.trainer(config=config.make(), optimizer=_momentum())
        training_runs.fit(folder, of=of)
        return folder

    assert not released_traces(fit(tmp_path / "honest"))

    def leaking(self, state):
        released, private = honest(self, state)
        moved = {"momentum": released.opt_state, "buffers": state.noise_state.buffers}
        return StateHalves(dataclasses.replace(released, opt_state=moved), private)

    def joined(self, halves):
        opened = dataclasses.replace(
            halves.released, opt_state=halves.released.opt_state["momentum"]
        )
        return JOINED(self, halves._replace(released=opened))

    JOINED = Loop.joined_state
    monkeypatch.setattr(Loop, "halves", leaking)
    monkeypatch.setattr(Loop, "joined_state", joined)
    traces = released_traces(fit(tmp_path / "leaking"))
    assert any("buffers" in trace.entry for trace in traces)
    assert all("noise" in str(trace) for trace in traces)


def test_a_raw_number_in_a_released_file(tmp_path):
    import training_runs

    folder = tmp_path / "run"
    training_runs.fit(folder)
    raw = json.loads((folder / "private" / "raw.jsonl").read_text().splitlines()[0])
    metrics = folder / "released" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0]["speed"] = raw["signal_to_noise"]
    metrics.write_text("\n".join(map(json.dumps, lines)) + "\n")
    (trace,) = released_traces(folder)
    assert (trace.file, trace.entry) == ("metrics.jsonl", "line 1: speed")


def _momentum():
    import optax

    return optax.sgd(0.5, momentum=0.9)
