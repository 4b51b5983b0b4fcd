"""The tests of a package and of all that imports it: `python tests/rooms.py clipping`."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def parts() -> dict[str, set[str]]:
    """The parts of bevel that each part imports, anywhere in its files."""
    found = dict[str, set[str]]()
    for path in sorted((ROOT / "bevel").rglob("*.py")):
        own = path.relative_to(ROOT / "bevel").with_suffix("").parts[0]
        uses = found.setdefault(own, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bevel"):
                names = node.module.split(".")
                uses |= {names[1]} if len(names) > 1 else {alias.name for alias in node.names}
    return found


def test_paths(room: str) -> list[str]:
    """Paths under tests/, for pytest."""
    imports = parts()
    if room not in imports:
        raise SystemExit(f"ROOM={room}: write one of {', '.join(sorted(imports))}")
    # The facade imports everything, so it would make every room depend on every other.
    wanted, facades = {room}, {"__init__", "__main__", "sharding"} - {room}
    while more := {p for p, uses in imports.items() if uses & wanted} - wanted - facades:
        wanted |= more
    paths = [ROOT / "tests" / name for name in wanted]
    paths += [ROOT / "tests" / f"test_{name}.py" for name in wanted]
    paths += [ROOT / "tests" / "test_house.py", ROOT / "tests" / "test_public_surface.py"]
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.exists())


if __name__ == "__main__":
    print(*test_paths(sys.argv[1]))
