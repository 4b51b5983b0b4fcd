"""House rules: what the shape of the package promises, checked on its source."""

import ast
import collections
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bevel"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A part imports parts of lower layers, and itself. Parts of one layer do not import one another.
LAYERS = [
    {"errors"},
    {"lazy"},
    {"checks", "precision"},
    {"file_errors"},
    {"output_files"},
    {"sharding"},
    {"matrix_factorization", "processes"},
    {"batch_selection", "clipping", "noise_addition", "optimizers", "accounting"},
    {"execution_plan", "experimental", "sharding_utils"},
    {"inspection", "choosing"},
    {"training"},
    {"report", "frameworks", "auditing", "datasets", "shipping", "tuning"},
    {"keras_api"},
    {"models"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {part: number for number, parts in enumerate(LAYERS) for part in parts}
# Export files under a name that users know. They re-export from higher layers, on first use.
FACADES = {"bevel/sharding/processes.py", "bevel/sharding/simulate.py"}
VAGUE_NAMES = {"utils", "common", "helpers", "misc"}
LINE_LIMIT, MEDIAN_LIMIT = 400, 160
# JAX Privacy has both.
SAME_NAME = {"LossFn"}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}
TREES = {path: ast.parse(path.read_text(), str(path)) for path in SOURCES}


def part_of(module: str) -> str:
    """The module or subpackage directly under bevel that a module belongs to."""
    return [*module.split("."), "__init__"][1]


def imports(path: Path) -> set[str]:
    """The modules of bevel that a file imports, anywhere in it, but for type checkers only."""
    for_types = {
        id(inner)
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(TREES[path]):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path)} has a relative import"
            names = {f"{node.module}.{alias.name}": alias for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found & MODULES.keys()


IMPORTS = {module: imports(path) for module, path in MODULES.items()}


def test_every_part_has_a_layer():
    strange = sorted({part_of(module) for module in MODULES} - LAYER_OF.keys())
    assert not strange, f"say in this file which layer these parts belong to: {strange}"


def test_imports_go_down():
    offences = [
        f"{module} -> {other}"
        for module, path in MODULES.items()
        if shown(path) not in FACADES
        for other in IMPORTS[module]
        if part_of(other) != part_of(module)
        and LAYER_OF[part_of(other)] >= LAYER_OF[part_of(module)]
    ]
    assert not offences, f"imports against the direction of the package: {offences}"


def test_modules_are_not_imported_in_a_circle():
    """Imports inside functions count: they hide a circle, and do not open it."""
    done, path = set[str](), list[str]()

    def visit(module: str) -> None:
        if module in path:
            raise AssertionError(" -> ".join([*path[path.index(module) :], module]))
        if module in done or shown(MODULES[module]) in FACADES:
            return
        path.append(module)
        for other in sorted(IMPORTS[module]):
            visit(other)
        done.add(path.pop())

    for module in MODULES:
        visit(module)


def test_every_module_has_a_test_file_at_its_place():
    untested = [
        shown(path)
        for path in SOURCES
        if not path.stem.startswith("__")
        and not (ROOT / "tests" / path.relative_to(PACKAGE).with_name(f"test_{path.name}")).exists()
    ]
    assert not untested, f"no tests/<same path>/test_<module>.py for: {untested}"


def test_files_are_short():
    lengths = {shown(path): len(path.read_text().splitlines()) for path in SOURCES}
    long = {name: lines for name, lines in lengths.items() if lines > LINE_LIMIT}
    assert not long, f"files above {LINE_LIMIT} lines: {long}"
    assert statistics.median(lengths.values()) <= MEDIAN_LIMIT


def test_names_say_what_is_inside():
    vague = [
        shown(path)
        for path in SOURCES
        if VAGUE_NAMES & set(path.relative_to(PACKAGE).with_suffix("").parts)
    ]
    assert not vague, f"modules with a name that says nothing: {vague}"


def test_no_two_classes_have_one_name():
    places = collections.defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(shown(path))
    shared = {name: at for name, at in places.items() if len(at) > 1 and name not in SAME_NAME}
    assert not shared, f"classes of one name: {shared}"


def uses_of_other_modules(path: Path) -> set[tuple[str, str]]:
    """The (module, name) pairs of bevel that a file imports, reads, or names in a string."""
    tree = TREES.get(path) or ast.parse(path.read_text(), str(path))
    found, modules = set[tuple[str, str]](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.add((node.module, alias.name))
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Attribute(), [ast.Constant(str(module)), *_])
            ):
                modules[name] = module  # of importlib.import_module
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(name), attr=attribute) if name in modules:
                found.add((modules[name], attribute))
            case ast.Call(_, [ast.Name(name), ast.Constant(str(attribute)), *_]):
                found.add((modules.get(name, ""), attribute))  # of monkeypatch.setattr
            case ast.Constant(str(text)) if text.startswith("bevel."):
                found.add(tuple(re.split("[.:](?=[^.:]*$)", text))[:2])
    return found


def test_what_only_its_own_module_uses_has_an_underscore():
    """And what has one is used by its own module only, so a reader sees how far a name reaches."""
    folders = [ROOT / name for name in ("tests", "benchmarks", "examples")]
    others = [path for folder in folders for path in folder.rglob("*.py")]
    others += PACKAGE.rglob("*.pyi")
    used = set().union(*map(uses_of_other_modules, [*SOURCES, *others]))
    local, reached = [], []
    for module, path in MODULES.items():
        for node in TREES[path].body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name != "main":
                if (module, node.name) not in used and not node.name.startswith("_"):
                    local.append(f"{shown(path)}: {node.name}")
                if (module, node.name) in used and node.name.startswith("_"):
                    reached.append(f"{shown(path)}: {node.name}")
    assert not local, f"used in one module only, so write them with an underscore: {local}"
    assert not reached, f"used in other modules, so write them without an underscore: {reached}"


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
