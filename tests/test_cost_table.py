"""The table of the README comes from runs that belong together, and from nothing else."""

import importlib.util
import json
from pathlib import Path

import pytest

_file = Path(__file__).resolve().parents[1] / "benchmarks" / "cost_table.py"
_spec = importlib.util.spec_from_file_location("cost_table", _file)
cost_table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cost_table)

ABOUT = {"machine": "one GPU", "date": "2026-11-17", "versions": "jax 1", "commit": "abc"}


def report(case, columns, **changed):
    rows = [{"case": case, "dtype": "bfloat16", "columns": columns}]
    return {**ABOUT, "size": "full", "rows": rows, **changed}


MLP = report(
    "mlp",
    {
        "grad": {"ms": 2.0, "memory_bytes": 100},
        "bevel": {"ms": 3.0, "memory_bytes": 120},
        "naive": {"failed": "does not fit: 306 GiB of per-example gradients"},
        "step": {"ms": 4.0},
        "private_step": {"ms": 6.0},
    },
)
LORA = report("lora", {"grad": {"ms": 1.0}, "bevel": {"ms": 1.1}})


def test_runs_are_merged_into_one_table(tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, one in zip(files, (LORA, MLP), strict=True):
        file.write_text(json.dumps(one))
    text = cost_table.merge_files(files)
    _, _, mlp, lora, _, about = text.splitlines()
    assert mlp == (
        "| MLP 784-4096-4096-10, batch 4096 (bfloat16) | 2 ms | out of memory | 3 ms | 1.50x "
        "| 1.20x | 4 ms | 6 ms, 1.50x |"
    )
    assert lora.startswith("| GPT 1.3B with LoRA") and "| 1.10x |" in lora
    assert about == "one GPU, 2026-11-17, jax 1, commit abc."


@pytest.mark.parametrize("key", ["machine", "date", "versions", "commit", "size"])
def test_runs_that_differ_are_refused(key):
    with pytest.raises(ValueError, match=f"reports of different {key}: "):
        cost_table.merged([MLP, {**LORA, key: "another"}])


def test_a_row_that_was_measured_twice_is_refused():
    with pytest.raises(ValueError, match="mlp bfloat16 was measured twice"):
        cost_table.merged([MLP, MLP])
