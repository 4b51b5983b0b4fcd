"""Merges the results of `clipping.py --json FILE` into the table of the README.

    OPTIONS="--size full --dtype bfloat16 --seconds 570"
    OPTIONS="$OPTIONS --columns grad,bevel,step,private_step,naive"
    python benchmarks/clipping.py $OPTIONS --cases mlp,wrn,vit --json A.json
    python benchmarks/clipping.py $OPTIONS --cases gpt_loop_32,gpt_loop_128 --json B.json
    python benchmarks/clipping.py $OPTIONS --cases gpt_scan_32,gpt_scan_remat_32 --json C.json
    python benchmarks/clipping.py $OPTIONS --cases gpt_1_3b,gpt_1_3b_remat,lora --json D.json
    python benchmarks/clipping.py --merge A.json B.json C.json D.json

Rows may come from several runs, but only of one machine, day, commit and set of versions: anything
else is refused, because ratios of different programs or machines say nothing beside each other.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SAME = ("machine", "date", "versions", "commit", "size")
NAMES = {
    "mlp": "MLP 784-4096-4096-10, batch 4096",
    "wrn": "WRN-16-4 with GroupNorm, batch 2048",
    "vit": "ViT-B/16, batch 256",
    "gpt_loop_32": "GPT-2 small, loop over layers, 32 x 512 tokens",
    "gpt_loop_128": "GPT-2 small, loop over layers, 128 x 512 tokens",
    "gpt_scan_32": "GPT-2 small, `scan` over layers, 32 x 512 tokens",
    "gpt_scan_remat_32": "GPT-2 small, `scan` with `jax.checkpoint`, 32 x 512 tokens",
    "gpt_1_3b": "GPT 1.3B, 8 x 1024 tokens",
    "gpt_1_3b_remat": "GPT 1.3B, `scan` with `jax.checkpoint`, 16 x 1024 tokens",
    "lora": "GPT 1.3B with LoRA of rank 16, 8 x 1024 tokens",
}
HEADS = ("model", "`jax.grad`", "`vmap(grad)`", "bevel", "ratio", "memory", "step", "private step")


def commit() -> str:
    """The commit of this checkout, marked if files differ from it."""
    folder = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
        return run.stdout.strip()

    found = git("rev-parse", "--short=10", "HEAD")
    return found + "+changes" if git("status", "--porcelain", "-uno") else found or "unknown"


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One report with the rows of all. Raises if they do not belong beside each other."""
    for key in SAME:
        values = {str(report.get(key)) for report in reports}
        if len(values) > 1:
            raise ValueError(f"reports of different {key}: {', '.join(sorted(values))}")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for report in reports for row in report["rows"]):
        key = row["case"], row["dtype"]
        if key in rows:
            raise ValueError(f"{' '.join(key)} was measured twice")
        rows[key] = row
    return {**reports[0], "rows": list(rows.values())}


def markdown(report: dict[str, Any]) -> str:
    """The table, with ratios to `jax.grad`, and to a step without privacy for the last column."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
    names = NAMES if report.get("size") == "full" else {}
    order = {name: i for i, name in enumerate(NAMES)}
    for row in sorted(report["rows"], key=lambda r: (order.get(r["case"], 99), r["dtype"])):
        found = row["columns"]
        grad, own = found.get("grad", {}), found.get("bevel", {})
        cells = [
            f"{names.get(row['case'], row['case'])} ({row['dtype']})",
            _time(grad),
            _time(found.get("naive", {}), grad),
            _time(own),
            _ratio(own, grad, "ms"),
            _ratio(own, grad, "memory_bytes"),
            _time(found.get("step", {})),
            _time(found.get("private_step", {}), found.get("step", {})),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    about = ", ".join(str(report.get(key)) for key in ("machine", "date", "versions"))
    return "\n".join([*lines, "", f"{about}, commit {report.get('commit')}."])


def _time(numbers: dict[str, Any], base: dict[str, Any] | None = None) -> str:
    if "ms" not in numbers:
        failed = str(numbers.get("failed", ""))
        short = "out of memory" in failed or "does not fit" in failed
        return "out of memory" if short else failed
    ratio = "" if base is None else _ratio(numbers, base, "ms")
    return f"{numbers['ms']:.4g} ms" + (f", {ratio}" if ratio else "")


def _ratio(numbers: dict[str, Any], base: dict[str, Any], key: str) -> str:
    return f"{numbers[key] / base[key]:.2f}x" if key in numbers and base.get(key) else ""


def merge_files(paths: Sequence[Path]) -> str:
    return markdown(merged([json.loads(path.read_text()) for path in paths]))
