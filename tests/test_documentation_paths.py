"""Every file, test, link and name that the documentation mentions exists."""

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(
    r"(?<![\w/.<])((?:bevel|tests|docs|benchmarks|examples)/(?:[\w/.-]*(?:\.(?:pyi?|md|toml|html)|/))?)"
    r"(?!\w)(?:::(test_\w+))?"
)
TEST_FILE = re.compile(r"(?<![\w/])test_\w+\.py")
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([\w-]+))?\)")
NAME = re.compile(r"(?<![\w./-])bevel(?:\.[A-Za-z_]\w*)+")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def test_every_file_and_test_exists():
    missing = []
    for page, text in TEXTS.items():
        for path, test in set(PATH.findall(text)):
            if not (ROOT / path).exists() or (test and test not in functions_in(ROOT / path)):
                missing.append(f"{page.name}: {path}{'::' * bool(test)}{test}")
        for name in set(TEST_FILE.findall(text)):
            if not any((ROOT / "tests").rglob(name)):
                missing.append(f"{page.name}: {name}")
    assert not missing, f"named in the documentation, but not there: {sorted(missing)}"


def test_every_relative_link_leads_somewhere():
    broken = []
    for page, text in TEXTS.items():
        for target, anchor in set(LINK.findall(FENCED.sub("", text))):
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.name}: {target}{'#' * bool(anchor)}{anchor}")
    assert not broken, f"broken links: {sorted(broken)}"


def test_every_name_of_bevel_resolves():
    unknown = []
    for page, text in TEXTS.items():
        names = {n for code in CODE.findall(FENCED.sub("", text)) for n in NAME.findall(code)}
        for language, block in FENCED.findall(text):
            for node in ast.walk(ast.parse(block)) if language == "python" else ():
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bevel"):
                    names |= {f"{node.module}.{alias.name}" for alias in node.names}
        unknown += [f"{page.name}: {name}" for name in names if not resolves(name)]
    assert not unknown, f"named in the documentation, but not in bevel: {sorted(unknown)}"
