"""Secrets are random, derived by purpose, never shown, and can be saved and restored."""

import json

import jax
import numpy as np
import pytest
from plans import CONFIGS

from bevel.accounting import Ledger, dpsgd_event
from bevel.errors import FixArgumentsError
from bevel.execution_plan import PlanSecrets
from bevel.noise_addition import keys


def words(secrets):
    return np.asarray(jax.random.key_data(secrets.noise_key))


def test_new_secrets_are_never_the_same():
    made = [PlanSecrets.new() for _ in range(4)]
    assert len({s.root for s in made}) == 4
    assert not made[0].known


@pytest.mark.parametrize("secrets", [PlanSecrets.new(), PlanSecrets.new("threefry2x32")])
def test_secrets_come_back_from_a_file(secrets):
    again = PlanSecrets.from_dict(json.loads(json.dumps(secrets.to_dict())))
    assert again == secrets
    np.testing.assert_array_equal(words(again), words(secrets))
    assert again.sampling_seed == secrets.sampling_seed < 2**128
    assert words(secrets).size == keys.WORDS[secrets.generator]


def test_every_purpose_and_every_attempt_has_its_own_bits():
    secrets = PlanSecrets.new()
    seen = set()
    for attempt in range(3):
        own = secrets.of_attempt(attempt)
        seen |= {own.root, words(own).tobytes(), own.sampling_seed, own.commitment}
    assert len(seen) == 12
    assert secrets.of_attempt(0) is secrets
    assert secrets.of_attempt(1) == secrets.of_attempt(1)


def test_secrets_are_not_shown():
    secrets = PlanSecrets.new()
    plan = CONFIGS["dpsgd"].make(secrets=secrets)
    shown = repr(secrets) + repr(plan) + str(plan) + plan.fingerprint()
    for hidden in (
        secrets.root.hex(),
        repr(secrets.root),
        str(secrets.sampling_seed),
        words(secrets).tobytes().hex(),
        *map(str, words(secrets).tolist()),
    ):
        assert hidden not in shown


def test_a_ledger_takes_the_commitment(tmp_path):
    secrets = PlanSecrets.new()
    with Ledger.open(tmp_path / "l", unit="example", relation="ADD_OR_REMOVE_ONE") as ledger:
        run = ledger.run("a", plan="p", key=secrets.commitment)
        run.charge(0, 1, dpsgd_event(1.0, 1, sampling_prob=0.1))
        again = ledger.run("a", plan="p", key=secrets.of_attempt(1).commitment)
        again.charge(0, 1, dpsgd_event(1.0, 1, sampling_prob=0.1), attempt=1)


def test_secrets_are_used_by_one_plan_of_a_process():
    secrets = PlanSecrets.new()
    plans = [CONFIGS["dpsgd"].make(secrets=secrets)]
    with pytest.raises(FixArgumentsError, match="already uses this prng_key"):
        CONFIGS["dpsgd"].make(secrets=secrets)
    keys.release(secrets.noise_key)
    plans.append(CONFIGS["dpsgd"].make(secrets=secrets))


def test_known_secrets_are_recorded_as_such():
    known, secret = PlanSecrets.for_tests(3), PlanSecrets.new()
    assert known == PlanSecrets.for_tests(3) != PlanSecrets.for_tests(4)
    for secrets in (known, secret):
        record = CONFIGS["dpsgd"].make(secrets=secrets).noise_addition_transform.record
        assert record.key_is_secret is not secrets.known
    np.testing.assert_array_equal(
        words(known), jax.random.key_data(keys.seed_key(known.noise_seed))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlanSecrets(b"short"), "not 32 bytes"),
        (lambda: PlanSecrets("0" * 32), "not 32 bytes"),
        (lambda: PlanSecrets(bytes(32), "rbg"), "generator='rbg'"),
        (lambda: PlanSecrets.from_dict({}), "not the secrets of a plan"),
        (lambda: PlanSecrets.from_dict({"root": "zz"}), "not the secrets of a plan"),
        (
            lambda: PlanSecrets.from_dict(PlanSecrets.new().to_dict() | {"version": 9}),
            "version 9",
        ),
    ],
)
def test_invalid_secrets_are_refused(make, message):
    with pytest.raises(FixArgumentsError, match=message):
        make()


def test_a_refused_file_does_not_show_what_it_holds():
    with pytest.raises(FixArgumentsError) as caught:
        PlanSecrets.from_dict({"version": 1, "root": "topsecret", "generator": "x", "known": 0})
    assert "topsecret" not in str(caught.value) and caught.value.__cause__ is None
