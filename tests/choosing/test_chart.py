"""The picture is the same for the same proposal, and shows the numbers of its curve."""

import re

import pytest

from bevel.choosing import ChosenNumber, NoiseCurve, NoisePoint, Proposal, Request
from bevel.choosing.chart import write_chart
from bevel.errors import FixArgumentsError

POINTS = tuple(NoisePoint(2**k, 4000 // 2**k, 1 + 2**k / 64) for k in range(4, 8))


@pytest.mark.parametrize("epochs", [4.0, None])
def test_the_picture_is_reproducible(tmp_path, epochs):
    request = Request(num_units=1000, epsilon=2.0)
    curve = NoiseCurve(POINTS, least=1e-4, epochs=epochs)
    proposal = Proposal(request, {"delta": ChosenNumber(1e-4)}, curve, POINTS[1])
    files = [tmp_path / name for name in ("one.svg", "two.svg")]
    for file in files:
        write_chart(proposal, file)
    one, two = (file.read_text() for file in files)
    assert one == two
    assert "<dc:date>" not in one
    assert len(re.findall("<!-- 32 -->", one)) == 1  # the label of the proposed batch size
    with pytest.raises(FixArgumentsError, match=r"x.gif must end with .svg, .png, .pdf"):
        write_chart(proposal, tmp_path / "x.gif")
    write_chart(proposal, tmp_path / "three.png")
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")
