"""`bevel new FOLDER`: writes a small project that trains at once."""

import importlib.util
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bevel.cli.command_parser import CommandParser
from bevel.errors import FixArgumentsError
from bevel.output_files import write_file

EXAMPLES = """examples:
  bevel new digits
  bevel new patients --data table
  bevel new messages --data text --framework equinox
"""
FRAMEWORKS = {"plain": None, "nnx": "flax", "linen": "flax", "equinox": "equinox", "keras": "keras"}
_TEMPLATES = Path(__file__).parent / "templates"


class _Kind(NamedTuple):
    """Settings of a project for one kind of data. They were chosen with [data] tune = true."""

    template: str
    title: str
    source: str
    about: str
    delta: str
    batch_size: int
    steps: int
    clip_norm: float
    learning_rate: float
    checkpoint_every: int


DATA = {
    "digits": _Kind(
        "image", "Handwritten digits", "digits", "1,437 images of scikit-learn",
        "1e-4", 512, 60, 0.5, 0.5, 15,
    ),
    "table": _Kind(
        "table", "A table of tumours", "breast_cancer", "455 rows of scikit-learn",
        "1e-4", 256, 60, 0.5, 0.5, 15,
    ),
    "text": _Kind(
        "tokens", "Token sequences", "sequences", "2,500 generated sequences",
        "1e-4", 512, 100, 0.5, 1.0, 25,
    ),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser(
        "new",
        "Write a small project: a config, a model and a README. It trains at once on "
        "data that ships with it; put in your own data and model step by step.",
        EXAMPLES,
    )
    parser.add_argument("folder", type=Path, help="a new or empty folder")
    parser.add_argument("--data", choices=DATA, default="digits", help="by default digits")
    parser.add_argument(
        "--framework", choices=FRAMEWORKS, default="plain", help="of the model; by default plain"
    )
    options = parser.parsed(arguments)
    _write_project(options.folder, options.data, options.framework)
    library = FRAMEWORKS[options.framework]
    print(f"{options.folder} has config.toml, model.py and README.md. Next:\n")
    if library is not None and importlib.util.find_spec(library) is None:
        print(f"  pip install 'bevel[frameworks]'   # {library} is not installed")
    print(
        f"  cd {options.folder}\n"
        "  bevel train config.toml       # train a private model\n"
        "  bevel report runs/first       # write a page about the run\n"
        "  bevel audit config.toml       # attack it"
    )
    return 0


def _write_project(folder: Path, data: str, framework: str) -> None:
    """Writes all files, or none if there is something in the way."""
    if folder.is_file():
        raise FixArgumentsError(f"{folder} is a file: name a new folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise FixArgumentsError(
            f"{folder} has files in it, and bevel new overwrites nothing: name a new folder, such "
            f"as {folder}/first."
        )
    files = project_files(data, framework)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, text in files.items():
            write_file(folder / name, text.encode())
    except BaseException:
        for name in files:
            (folder / name).unlink(missing_ok=True)
        raise


def project_files(data: str, framework: str) -> dict[str, str]:
    """The files of a project, by name."""
    kind = DATA[data]
    model = (_TEMPLATES / f"{framework}_{kind.template}.py.txt").read_text()
    values = kind._asdict()
    config, readme = (
        string.Template((_TEMPLATES / name).read_text()).substitute(values)
        for name in ("config.toml", "README.md")
    )
    return {"config.toml": config, "model.py": model, "README.md": readme}
