"""The explanation at each epsilon, and the bound on an attacker's guess against brute force."""

import itertools
from decimal import Decimal

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bevel.accounting.ledger.header import RELATIONS, UNITS, LedgerHeader
from bevel.accounting.ledger.spent import Spent
from bevel.report.meaning import ARITHMETIC, definitions, factor, guess_bound, meaning
from bevel.report.rounding import percent_up

BLIND = "A blind guess is right 50% of the time."


def words(epsilon, delta=1e-5, unit="example", relation="ADD_OR_REMOVE_ONE", units=None):
    spent = Spent(epsilon, delta, LedgerHeader(unit, relation), ("run a",))
    return "\n".join(meaning(spent, units))


@pytest.mark.parametrize(
    ("epsilon", "times", "right", "called"),
    [
        (0.0, "at most 1 times (e^ε, rounded up)", "at most 50.1%", "a strong guarantee"),
        (0.25, "at most 1.29 times (e^ε, rounded up)", "at most 56.3%", "a strong guarantee"),
        (0.5, "at most 1.65 times (e^ε, rounded up)", "at most 62.3%", "a strong guarantee"),
        (1.0, "at most 2.72 times (e^ε, rounded up)", "at most 73.2%", "a strong guarantee"),
        (2.0, "at most 7.39 times (e^ε, rounded up)", "at most 88.1%", "a moderate guarantee"),
        (3.0, "at most 20.1 times (e^ε, rounded up)", "at most 95.3%", "a moderate guarantee"),
        (4.0, "at most 54.6 times (e^ε, rounded up)", "at most 98.3%", "a weak guarantee"),
        (6.0, "at most 404 times (e^ε, rounded up)", "at most 99.8%", "a weak guarantee"),
        (
            8.0,
            "at most 2990 times (e^ε, rounded up)",
            "does not rule out a guess",
            "alone say next to nothing",
        ),
        (
            20.0,
            "at most 10⁹ times (e^ε, rounded up)",
            "does not rule out a guess",
            "alone say next to nothing",
        ),
        (
            5000.0,
            "at most 10²¹⁷² times (e^ε, rounded up)",
            "does not rule out a guess",
            "alone say next to nothing",
        ),
    ],
)
def test_numbers_and_words_at_every_epsilon(epsilon, times, right, called):
    text = words(epsilon)
    assert times in text and right in text and called in text and BLIND in text
    verdicts = ("a strong", "a moderate", "a weak", "next to nothing")
    assert sum(word in text for word in verdicts) == 1
    assert "almost the same" not in text and "hardly" not in text


def test_a_large_epsilon_is_not_excused_by_practice():
    assert "experience, not part of the guarantee" in words(4)
    assert "Do not rely on this ε to protect anyone" in words(20)


def test_a_delta_of_one_over_the_units_is_never_called_strong():
    assert "strong guarantee" in words(0.5, 1e-3, units=999)
    text = words(0.5, 1e-3, units=1000)
    assert "δ is too large" in text and "a strong guarantee" not in text


def distributions(outcomes):
    weights = st.lists(st.floats(0, 1), min_size=outcomes, max_size=outcomes)
    return weights.filter(lambda w: sum(w) > 0.1).map(lambda w: np.asarray(w) / sum(w))


@hypothesis.given(distributions(5), distributions(5), st.floats(0, 6))
def test_no_test_guesses_better_than_the_bound(p, q, epsilon):
    """All 32 tests on five outcomes, at the delta that holds for the two distributions."""
    sets = [list(s) for n in range(6) for s in itertools.combinations(range(5), n)]
    mass = [(p[s].sum(), q[s].sum()) for s in sets]
    delta = max(0.0, *(max(a - np.exp(epsilon) * b, b - np.exp(epsilon) * a) for a, b in mass))
    best = max((true + 1 - false) / 2 for true, false in mass)
    assert best <= float(guess_bound(Decimal(epsilon), Decimal(delta))) + 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_the_bound_is_reached(epsilon, delta):
    """By randomized response that fails openly with probability delta."""
    right = (1 - delta) * np.exp(epsilon) / (1 + np.exp(epsilon))
    p = np.asarray([delta, right, 1 - delta - right, 0.0])
    q = p[::-1]
    excess = np.maximum(p - np.exp(epsilon) * q, 0).sum()
    assert excess == pytest.approx(delta, abs=1e-12)
    best = (1 + np.maximum(p - q, 0).sum()) / 2
    found = float(guess_bound(Decimal(epsilon), Decimal(delta)))
    assert found == pytest.approx(best, abs=1e-12)
    assert found == pytest.approx((np.exp(epsilon) + delta) / (1 + np.exp(epsilon)), abs=1e-12)


@hypothesis.given(st.floats(1e-3, 700))
def test_the_factor_is_never_understated(epsilon):
    shown = factor(Decimal(epsilon))
    if epsilon <= 13:
        assert Decimal(shown) >= Decimal(epsilon).exp()
    else:
        raised = shown.removeprefix("10")
        power = int(raised.translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
        assert epsilon < power * np.log(10) <= epsilon + np.log(10) * (1 + 1e-9)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_every_unit_and_relation_has_its_own_words(unit, relation):
    text = words(1, unit=unit, relation=relation)
    assert f"Take any one {unit}" in text
    two = f"which of two given {unit}s" in text
    assert two == (relation == "REPLACE_ONE")
    assert ("not been in the data" in text) == (relation == "ADD_OR_REMOVE_ONE")
    assert ("contributes nothing" in text) == (relation == "REPLACE_SPECIAL")


def test_epsilon_and_delta_have_a_sentence_each():
    epsilon, delta = definitions("user")
    assert epsilon.startswith("ε (epsilon)") and "smaller ε is more private" in epsilon
    assert delta.startswith("δ (delta)") and "number of users" in delta
    assert all(text.count(". ") == 0 and text.endswith(".") for text in (epsilon, delta))


def test_the_arithmetic_is_named_with_the_attack_and_the_remedy():
    text = " ".join(ARITHMETIC)
    for said in ("real numbers", "float32", "Mironov 2012", "60 of 60", "no false alarm in 60"):
        assert said in text
    assert "discrete Gaussian noise" in text and "plans do not offer it yet" in text
    # The figure that the measurement is compared with.
    assert f"at most {percent_up(guess_bound(Decimal('0.5'), Decimal(0)))} of the time" in text
