"""`check_sensitivity` measures what one unit contributes, and finds what is too long.

Each sabotage breaks the bound in another place between the loss and the clipped sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bevel.auditing import check_sensitivity
from bevel.clipping.accumulate import sums as clipped_sums
from bevel.clipping.norms.outer_products import OuterProducts
from bevel.errors import FixArgumentsError
from bevel.execution_plan import AdaptiveClipping, DPSGDConfig, NonPrivateConfig, PlanSecrets
from bevel.sharding import make_mesh
from bevel.training import Augmentation, Trainer
from bevel.training.private_step import PrivateStep

N, D = 48, 6
CLIP = PrivateStep.clip


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3, D)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 4, N).astype(np.int32)}


def params():
    rng = np.random.default_rng(1)
    w, v = (rng.normal(size=shape).astype(np.float32) for shape in ((D, 8), (8, 4)))
    return {"b": jnp.zeros(4), "v": jnp.asarray(v), "w": jnp.asarray(w)}


def loss(params, batch, prng):
    hidden = jnp.tanh(batch["x"] @ params["w"]).mean(axis=1)
    logits = hidden @ params["v"] + params["b"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {}


def trainer(options=None, **changed):
    fields = {"noise_multiplier": 1.0, "l2_clip_norm": 0.5} | (options or {})
    plan = DPSGDConfig.default(N, 16, 4, **fields).make(secrets=PlanSecrets.for_tests(0))
    given = {"config": plan, "loss_fn": loss, "optimizer": optax.sgd(0.1)}
    return Trainer(**given | changed)


def on_mesh():
    return {"mesh": make_mesh("data=4,model=2"), "rules": "fsdp"}


def by_user():
    return {"unit": "user", "examples_per_user_per_batch": 3}, np.arange(3 * N) % N


def checked(of=None, **changed):
    return check_sensitivity(of or trainer(), data(), params(), **changed)


def checked_users(**changed):
    config, users = by_user()
    many = jax.tree.map(lambda x: np.concatenate([x, x + 1, x]) % 4, data())
    return check_sensitivity(trainer(config, **changed), many, params(), user_ids=users)


HONEST = {
    "constant clip norm": {},
    "not rescaled": {"rescale_to_unit_norm": False},
    "adaptive": {"adaptive_clipping": AdaptiveClipping(0.5)},
}


@pytest.mark.parametrize("mesh", [False, True], ids=["one device", "data=4,model=2"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_trainers_pass_and_reach_the_bound(name, mesh):
    result = checked(trainer(HONEST[name], **on_mesh() if mesh else {}))
    assert result.passed and result.not_checked == ()
    assert result.rounding < 0.05
    moved = {movement.case: movement.moved for movement in result.movements}
    assert len(moved) == 7
    assert moved["longer gradients"] == pytest.approx(1, abs=0.01)  # so the check has power


def test_users_and_views_are_units():
    assert checked_users().passed and checked_users(**on_mesh()).passed
    doubled = Augmentation(lambda batch, key: jax.tree.map(lambda x: x * 2, batch), views=2)
    assert checked(trainer(augmentation=doubled)).passed


def find(result, at_least):
    assert not result.passed and result.moved > at_least
    assert str(result).startswith("sensitivity FAILED: one ")
    return max(result.movements, key=lambda movement: movement.moved)


def test_norms_that_are_too_small(monkeypatch):
    honest = OuterProducts.norm

    def halved(self, *arguments, **options):
        measured = honest(self, *arguments, **options)
        return jax.tree.map(lambda x: x / 2 if x.dtype == jnp.float32 else x, measured)

    monkeypatch.setattr(OuterProducts, "norm", halved)
    assert find(checked(), 1.3)


def test_a_parameter_that_is_not_clipped(monkeypatch):
    """The gradients of v are added as they are, beside those of the others, which are clipped."""

    def clip(self, state, batch, is_padding, key):
        sums, aux = CLIP(self, state, batch, is_padding, key)

        def plain(v):
            losses = jax.vmap(lambda row: self.loss_fn({**state.params, "v": v}, row, key)[0])(
                jax.tree.map(lambda x: x[:, None], batch[0])
            )
            return jnp.where(is_padding, 0, losses).sum() / 16

        return {**sums, "v": jax.grad(plain)(state.params["v"])}, aux

    monkeypatch.setattr(PrivateStep, "clip", clip)
    worst = find(checked(), 3)
    assert worst.parameter == "v"


def test_a_sum_that_counts_devices_twice(monkeypatch):
    def clip(self, state, batch, is_padding, key):
        sums, aux = CLIP(self, state, batch, is_padding, key)
        copies = 1 if self.batch_axes is None else 2
        return jax.tree.map(lambda x: x * jnp.asarray(copies, x.dtype), sums), aux

    monkeypatch.setattr(PrivateStep, "clip", clip)
    assert checked().passed
    assert find(checked(trainer(**on_mesh())), 1.9).moved == pytest.approx(2, abs=0.02)


def test_examples_that_are_coupled_before_the_loss_sees_them(monkeypatch):
    """Normalised over the batch, like BatchNorm: no trace of it is in the loss of one example."""

    def clip(self, state, batch, is_padding, key):
        rows, missing = batch
        x = jnp.where(is_padding[:, None, None], 0, rows["x"])
        x = (x - x.mean(axis=0)[None]) / (x.std(axis=0)[None] + jnp.float32(1e-3))
        return CLIP(self, state, ({**rows, "x": x}, missing), is_padding, key)

    monkeypatch.setattr(PrivateStep, "clip", clip)
    find(checked(), 1.1)
    find(checked(trainer(allow_coupled_examples=True)), 1.1)


def test_a_loss_with_batch_statistics_is_run_on_one_example_at_a_time():
    def coupled(params, batch, prng):
        x = batch["x"] - batch["x"].mean(axis=0)[None]
        return loss(params, {**batch, "x": x + 1}, prng)

    assert checked(trainer(loss_fn=coupled, allow_coupled_examples=True)).passed


def test_records_of_a_user_that_are_clipped_one_by_one(monkeypatch):
    """Each record of a user contributes as much as the user may."""

    def clip(self, state, batch, is_padding, key):
        rows, missing = batch
        found = [
            CLIP(
                self, state,
                (jax.tree.map(lambda x: x[:, k : k + 1], rows), missing[:, k : k + 1]),  # noqa: B023
                is_padding, key,
            )
            for k in range(3)
        ]  # fmt: skip
        return jax.tree.map(lambda *leaves: sum(leaves), *(sums for sums, _ in found)), found[0][1]

    monkeypatch.setattr(PrivateStep, "clip", clip)
    result = checked_users()
    find(result, 1.5)
    assert "one user contributes" in str(result)


def test_nan_that_reaches_the_sum(monkeypatch):
    def clip(self, state, batch, is_padding, key):
        sums, aux = CLIP(self, state, batch, is_padding, key)
        return jax.tree.map(lambda x: x + (batch[0]["x"].sum() * 0).astype(x.dtype), sums), aux

    monkeypatch.setattr(PrivateStep, "clip", clip)
    result = checked()
    assert find(result, 1e9).case in ("a record of NaN", "replaced by large inputs")
    assert result.moved == np.inf


def test_the_count_of_adaptive_clipping_has_a_bound_of_its_own(monkeypatch):
    def clip(self, state, batch, is_padding, key):
        sums, aux = CLIP(self, state, batch, is_padding, key)
        return sums._replace(unclipped=sums.unclipped * 3), aux

    monkeypatch.setattr(PrivateStep, "clip", clip)
    worst = find(checked(trainer(HONEST["adaptive"])), 2.9)
    assert worst.group == "the count of unclipped gradients"


def test_missing_clipping(monkeypatch):
    def all_ones(norm, clip_norm, clip):
        return jnp.where(norm.upper > 0, jnp.ones_like(norm.upper), 0)

    monkeypatch.setattr(clipped_sums, "coefficients", all_ones)
    find(checked(), 3)


def test_what_cannot_be_checked_is_named():
    def constant(params, batch, prng):
        return (params["w"].sum() + params["v"].sum() + params["b"].sum()) * 0, {}

    result = checked(trainer(loss_fn=constant))
    assert "all gradients are zero at these parameters" in str(result)
    tokens = {"t": np.arange(N, dtype=np.int32) % D}

    def lookup(params, batch, prng):
        return (params["w"][batch["t"]] @ params["v"]).sum() + params["b"].sum(), {}

    result = check_sensitivity(trainer(loss_fn=lookup), tokens, params())
    assert result.passed and "the data has no real numbers" in str(result)


def test_a_result_says_what_was_measured():
    result = checked()
    lines = str(result).splitlines()
    assert lines[0] == (
        "sensitivity PASSED: no example contributed more than its bound to a clipped sum"
    )
    assert lines[1].startswith("  bound         0.0625, and ")
    assert lines[2].startswith("  moved         ") and lines[2].endswith(": examples as they are")
    record = result.to_dict()
    assert record["passed"] and record["movements"][0]["case"] == "examples as they are"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"examples": 1}, "examples=1: pass an integer of at least 2"),
        ({"of": trainer(by_user()[0])}, "the plan protects users: pass user_ids, one for each of"),
        ({"of": trainer(config=NonPrivateConfig(N, 16, 1).make())}, "the plan does not clip"),
    ],
)  # fmt: skip
def test_bad_arguments(changed, message):
    with pytest.raises(FixArgumentsError, match=message):
        checked(**changed)
