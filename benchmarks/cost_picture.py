"""Draws the cost table of docs/results.md as docs/cost.svg.

python benchmarks/cost_picture.py
"""

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEVEL, PLAIN = "#1f6feb", "#9aa4b2"


def rows() -> list[tuple[str, float, float | None]]:
    """(model, ratio of bevel, ratio of vmap(grad) or None if it did not fit) of the cost table."""
    text = (DOCS / "results.md").read_text()
    table = text.split("## Cost of clipping")[1].split("\nA whole")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    found = []
    for model, _, _, _, _, ratio, _, plain in cells[2:]:
        number = re.fullmatch(r"([\d.]+)x", plain)
        found.append((model.replace("`", ""), float(ratio[:-1]), number and float(number[1])))
    return found


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "bevel", "svg.fonttype": "none", "font.size": 9}
    found = rows()
    figure, axes = plt.subplots(figsize=(8, 3.9))
    for y, (_, ratio, plain) in enumerate(found):
        axes.barh(y - 0.19, ratio, 0.36, color=BEVEL, label="bevel" if y == 0 else None)
        axes.text(ratio * 1.02, y - 0.19, f"{ratio:.2f}x", va="center", color=BEVEL)
        if plain is None:
            axes.text(1.02, y + 0.2, "vmap(grad) does not fit", va="center", color="#57606a")
            continue
        axes.barh(y + 0.19, plain, 0.36, color=PLAIN, label="vmap(grad)" if y == 0 else None)
        axes.text(plain * 1.02, y + 0.2, f"{plain:.3g}x", va="center", color="#57606a")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.8, 24)
    axes.set_xticks([1, 2, 4, 8, 16], ["1x", "2x", "4x", "8x", "16x"])
    axes.minorticks_off()
    axes.set_yticks(range(len(found)), [name for name, *_ in found])
    axes.invert_yaxis()
    axes.set_xlabel("time of per-example clipping, relative to jax.grad without privacy (H200)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(DOCS / "cost.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
