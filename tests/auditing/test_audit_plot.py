"""A picture of an audit is one file with both figures, and the same for the same record."""

import numpy as np
import pytest

from bevel.auditing import AuditResult, plot_audit
from bevel.errors import FixArgumentsError

SCORES = np.random.default_rng(0).normal(size=200)
RECORD = AuditResult(4.0, 1e-5, 2.1, 4.0, 0.05, 9.0, SCORES, SCORES > 0, "every step").to_dict()


def test_an_svg_has_both_figures(tmp_path):
    text = plot_audit(RECORD, tmp_path / "a.svg").read_text()
    for words in ("score of a canary", "false-positive rate", "most that the guarantee allows"):
        assert words in text
    assert "dc:date" not in text  # no clock time
    assert plot_audit(RECORD, tmp_path / "b.svg").read_text() == text


def test_a_png(tmp_path):
    assert plot_audit(RECORD, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(FixArgumentsError, match=r"pass a path such as 'audit\.svg'"):
        plot_audit(RECORD, tmp_path / "a.txt")
