"""House rules: what the shape of the package promises, checked on its source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bevel"
SOURCES = sorted(PACKAGE.rglob("*.py"))

ROOMS = {"batch_selection", "clipping", "noise_addition", "optimizers", "accounting"}
FOUNDATIONS = {"sharding", "precision", "errors", "lazy", "matrix_factorization"}
OUTSIDE = {
    "__init__",
    "__main__",
    "execution_plan",
    "experimental",
    "training",
    "report",
    "cli",
}  # may import every part
VAGUE_NAMES = {"utils", "common", "helpers", "misc"}
LINE_LIMIT = 400
# Dependencies that cost import time, or that a user may not have.
LAZY = {
    "optax",
    "scipy",
    "dp_accounting",
    "orbax",
    "grain",
    "flax",
    "tyro",
    "matplotlib",
    "jinja2",
    "sklearn",
    "tensorboardX",
}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    """The module or subpackage directly under bevel that a source file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names of every module a source file imports, at any depth."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if is_module(name) else base)
    return found


def forbidden_imports(path: Path) -> list[str]:
    """Imports of a room, or of bevel itself (which re-exports the rooms), from outside it."""
    barred = {("bevel", room) for room in ROOMS - {part_of(path)}} | {("bevel",)}
    return sorted(name for name in imported_modules(path) if tuple(name.split(".")[:2]) in barred)


def test_every_part_has_a_place_in_the_direction():
    known = ROOMS | FOUNDATIONS | OUTSIDE
    strange = sorted({part_of(path) for path in SOURCES} - known)
    assert not strange, f"say in this file what these parts may import: {strange}"


def test_every_module_has_a_test_file():
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    untested = [
        shown(path)
        for path in SOURCES
        if path.stem not in {"__init__", "__main__"} and f"test_{path.name}" not in tests
    ]
    assert not untested, f"no test_<module>.py under tests/ for: {untested}"


def test_files_are_short():
    lengths = {shown(path): len(path.read_text().splitlines()) for path in SOURCES}
    long = {name: lines for name, lines in lengths.items() if lines > LINE_LIMIT}
    assert not long, f"files above {LINE_LIMIT} lines: {long}"


def test_names_say_what_is_inside():
    vague = [
        shown(path)
        for path in SOURCES
        if VAGUE_NAMES & set(path.relative_to(PACKAGE).with_suffix("").parts)
    ]
    assert not vague, f"modules with a name that says nothing: {vague}"


@pytest.mark.parametrize("part", sorted(ROOMS | FOUNDATIONS))
def test_import_direction(part):
    offences = {
        shown(path): names
        for path in SOURCES
        if part_of(path) == part and (names := forbidden_imports(path))
    }
    assert not offences, f"imports against the direction of the package: {offences}"


def test_import_is_light():
    code = "import sys, bevel; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    loaded = sorted(LAZY & set(run.stdout.split()))
    assert not loaded, f"`import bevel` loads {loaded}"


def test_no_lock_file_is_tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = ["git", "ls-files", "--", "uv.lock", "*/uv.lock"]
    tracked = subprocess.run(listing, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not tracked, f"lock files under version control: {tracked.split()}"


def test_no_unfinished_marks():
    mark = re.compile(r"\b(TODO|FIXME)\b")
    unfinished = [
        f"{shown(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark.search(line)
    ]
    assert not unfinished, f"unfinished marks at: {unfinished}"
