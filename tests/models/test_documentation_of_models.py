"""The examples of docs/models.md are those of `bevel new`, and they train."""

import re
from pathlib import Path

import pytest
from model_specs import SPECS, data_of
from own_models import job_of

from bevel.cli.new import FRAMEWORKS, project_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
DATA = ("table", "images", "table", "tokens", "images", "table")

pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.parametrize(
    ("block", "kind"), list(zip(BLOCKS, DATA, strict=True)), ids=range(len(BLOCKS))
)
def test_the_examples_train(block, kind, tmp_path):
    job = job_of(data_of(SPECS[kind]), tmp_path / "mine.py", block)
    assert int(job.fit(progress=False).step) == 2


def test_the_examples_of_frameworks_are_those_of_new_projects():
    written = {
        project_files(data, framework)["model.py"]
        for data in ("digits", "table", "text")
        for framework in FRAMEWORKS
    }
    assert set(BLOCKS[:-1]) <= written
    assert len(BLOCKS) == len(FRAMEWORKS) + 1


def test_every_kind_is_described():
    from typing import get_args, get_type_hints

    from bevel.models import ModelTable

    for kind in get_args(get_type_hints(ModelTable)["kind"]):
        assert f"\n| `{kind}` |" in PAGE
