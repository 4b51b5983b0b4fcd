"""An audited trainer adds the canaries that are held in, and changes nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.auditing import gradient_canaries
from bevel.auditing.run_audit import audited_trainer, data_with_canaries
from bevel.execution_plan import AdaptiveClipping, DPSGDConfig, PlanSecrets
from bevel.sharding import make_mesh
from bevel.training import RunOptions, Trainer

N, D = 64, 4
OPTIONS = RunOptions(progress=False, compilations=1)
DATA = {"x": np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)}
PARAMS = {"b": jnp.zeros(8), "w": jnp.ones((D, 8))}


def loss(params, batch, prng):
    return jnp.tanh(batch["x"] @ params["w"] + params["b"][None]).sum(), {}


def trainer(**changed):
    """Full batches with noise so small that the sums can be read."""
    fields = {"noise_multiplier": 1e-6, "l2_clip_norm": 0.5, "normalize_by": 1.0}
    config = DPSGDConfig.default(N, N, 1, **fields | changed.pop("config", {}))
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    return Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(1.0), **changed)


def sums(of, data, **options):
    """The noised sum of one full batch."""
    last = of.fit(data, PARAMS, options=OPTIONS, **options)
    return jax.tree.map(lambda a, b: np.asarray(a - b), PARAMS, last.params), last


HALVES = ("released", "private")
MESHES = [None, "data=8", "data=4,model=2"]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("rescale", [True, False])
def test_each_canary_adds_the_clip_norm_at_its_coordinate(mesh, rescale):
    placed = {"mesh": mesh and make_mesh(mesh), "rules": "fsdp" if mesh else "replicated"}
    of = trainer(config={"rescale_to_unit_norm": rescale}, **placed)
    canaries = gradient_canaries(PARAMS, 20, N, seed=0)
    found, state = sums(audited_trainer(of, canaries), data_with_canaries(DATA, canaries))
    # The same data without any canary, by one example at a time.
    expected = jax.tree.map(lambda x: np.zeros(x.shape), PARAMS)
    clip = 0.5
    for i in set(range(N)) - set(canaries.units.tolist()):
        row = {"x": DATA["x"][i : i + 1]}
        gradient = jax.grad(lambda p: loss(p, row, None)[0])(PARAMS)  # noqa: B023
        norm = float(optax.tree.norm(gradient))
        factor = min(1, clip / norm) / (clip if rescale else 1)
        expected = jax.tree.map(lambda e, g: e + factor * np.asarray(g), expected, gradient)  # noqa: B023
    for number in np.flatnonzero(canaries.held_in):
        name = canaries.paths[canaries.leaf[number]]
        place = tuple(canaries.index[number][: PARAMS[name].ndim])
        expected[name][place] += 1 if rescale else clip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), found, expected)
    seen = np.asarray(state.opt_state.sums)
    np.testing.assert_allclose(seen[0], canaries.values(expected), atol=2e-4)


def test_held_out_canaries_have_the_opposite_gradient_under_replace_one():
    of = trainer(config={"neighboring_relation": "REPLACE_ONE"})
    canaries = gradient_canaries(PARAMS, 40, N, seed=0)
    step = audited_trainer(of, canaries).step
    assert set(step.contributions()[~canaries.held_in]) == {-1}
    plain = audited_trainer(trainer(), canaries).step
    assert set(plain.contributions()[~canaries.held_in]) == {0}


def test_canaries_follow_an_adaptive_clip_norm():
    of = trainer(config={"adaptive_clipping": AdaptiveClipping(0.5), "noise_multiplier": 1.0})
    canaries = gradient_canaries(PARAMS, 40, N, seed=0)
    audited = audited_trainer(of, canaries)
    state = audited.fit(data_with_canaries(DATA, canaries), PARAMS, options=OPTIONS)
    assert np.isfinite(np.asarray(state.opt_state.sums)).all()


def test_users_can_be_canaries():
    config = {"unit": "user", "examples_per_user_per_batch": 2}
    config = DPSGDConfig.default(N // 2, N // 2, 1, noise_multiplier=1e-6, **config)
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    of = Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(1.0))
    users = np.repeat(np.arange(N // 2), 2)
    canaries = gradient_canaries(PARAMS, N // 2, N // 2, seed=0)  # everyone
    data = data_with_canaries(DATA, canaries, users)
    _, state = sums(audited_trainer(of, canaries), data, user_ids=users)
    seen = np.asarray(state.opt_state.sums)[0] * N / 2
    np.testing.assert_allclose(seen, canaries.held_in, atol=1e-3)


def test_what_other_examples_contributed_is_known_and_stays_private(tmp_path):
    canaries = gradient_canaries(PARAMS, 20, N, seed=0)
    audited = audited_trainer(trainer(), canaries)
    folder = tmp_path / "run"
    state = audited.fit(data_with_canaries(DATA, canaries), PARAMS, folder=folder, options=OPTIONS)
    rest = np.asarray(state.opt_state.sums)[0] - np.asarray(state.noise_state.others)[0]
    np.testing.assert_allclose(rest, canaries.held_in, atol=1e-3)
    names = {half: [p.name for p in (folder / half).rglob("*.others")] for half in HALVES}
    assert names["private"] and not names["released"]
