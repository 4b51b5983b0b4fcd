"""Breaks promises of the library one by one, and checks that the fast tests notice each break.

    python tests/breaks.py                    # all breaks, also as `make test-breaks`
    python tests/breaks.py --only ledger      # those with this text in their name, file or tests
    python tests/breaks.py --list             # prints them, after checking their patterns

`breaks.toml` lists the breaks. Each one replaces a text that occurs exactly once in a file of the
package, and names up to three test files of which a fast test must fail:

| pytest's exit code | meaning                                                      |
| ------------------ | ------------------------------------------------------------ |
| 1                  | caught: a test failed                                        |
| 0                  | NOT CAUGHT: the fast tests do not check this promise         |
| other              | WRONG: the tests did not run, so the break proves nothing    |

The breaks are applied to copies of the working tree, which itself is never changed. At the end, the
tests that failed must pass on a copy without a break; otherwise they would have noticed nothing.
"""

import argparse
import concurrent.futures
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
MOST_SECONDS = 1200  # for the tests of one break


class Break(NamedTuple):
    """One deliberate break, with the tests that must notice it."""

    name: str  # the promise that it breaks
    file: str  # in bevel/
    old: str
    new: str
    tests: tuple[str, ...]  # in tests/

    def problems(self, root: Path = ROOT) -> list[str]:
        """What is wrong with this entry of the list, if anything."""
        path = root / "bevel" / self.file
        if not path.is_file():
            return [f"{self.name}: there is no bevel/{self.file}"]
        found = []
        count = path.read_text().count(self.old)
        if count != 1:
            found.append(f"{self.name}: the old text occurs {count} times in bevel/{self.file}")
        if self.old == self.new:
            found.append(f"{self.name}: the new text is the old one")
        if not 1 <= len(self.tests) <= 3:
            found.append(f"{self.name}: name one to three test files, not {len(self.tests)}")
        missing = [test for test in self.tests if not (root / "tests" / test).is_file()]
        return found + [f"{self.name}: there is no tests/{test}" for test in missing]


class Outcome(NamedTuple):
    """What the tests said about a break."""

    status: str  # "caught", "NOT CAUGHT" or "WRONG"
    failed: list[str]  # node ids of the tests that failed
    output: str


def read_breaks() -> list[Break]:
    entries = tomllib.loads(LIST.read_text())["break"]
    return [Break(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]


def copy_tree(folder: Path) -> None:
    """Copies the working tree: tracked files, and untracked ones that git does not ignore."""
    listing = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # a tracked file may have been deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    code = "import bevel; print(bevel.__file__)"
    imported = run([sys.executable, "-c", code], folder).stdout.strip()
    if Path(imported).resolve() != (folder / "bevel/__init__.py").resolve():
        raise SystemExit(f"the copy in {folder} imports {imported}, not its own package")


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a copy. No bytecode: a file that changes twice in a second looks old."""
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
    )


def run_tests(tests: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    options = ["--fast", "-x", "-q", "-p", "no:cacheprovider"]
    return run([sys.executable, "-m", "pytest", *options, *tests], folder)


def outcome_of(broken: Break, folder: Path) -> Outcome:
    """Runs the tests of a break in a copy of the tree, and restores the copy."""
    path = folder / "bevel" / broken.file
    intact = path.read_text()
    path.write_text(intact.replace(broken.old, broken.new))
    try:
        result = run_tests([f"tests/{test}" for test in broken.tests], folder)
    except subprocess.TimeoutExpired:
        return Outcome("WRONG", [], f"no result after {MOST_SECONDS} seconds")
    finally:
        path.write_text(intact)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", result.stdout, re.MULTILINE)
    status = {0: "NOT CAUGHT", 1: "caught"}.get(result.returncode, "WRONG")
    return Outcome(status, failed, result.stdout + result.stderr)


def report(broken: Break, outcome: Outcome, seconds: float) -> None:
    by = outcome.failed[0].removeprefix("tests/") if outcome.failed else ", ".join(broken.tests)
    print(f"{outcome.status:<10} {seconds:4.0f} s  {broken.name}  [{by}]", flush=True)
    if outcome.status == "WRONG":
        print("    " + "\n    ".join(outcome.output.strip().splitlines()[-15:]), flush=True)


def run_breaks(breaks: Sequence[Break], workers: int) -> dict[Break, Outcome]:
    """Runs the breaks, each worker in a copy of its own, and prints a line for each."""
    with tempfile.TemporaryDirectory(prefix="bevel-breaks-") as temporary:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(workers):
            folder = Path(temporary, str(number))
            copy_tree(folder)
            copies.put(folder)

        def work(broken: Break) -> Outcome:
            folder, begun = copies.get(), time.monotonic()
            try:
                outcome = outcome_of(broken, folder)
            finally:
                copies.put(folder)
            report(broken, outcome, time.monotonic() - begun)
            return outcome

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            outcomes = dict(zip(breaks, pool.map(work, breaks), strict=True))
        noticed = sorted({test for outcome in outcomes.values() for test in outcome.failed})
        if noticed:
            intact = run_tests(noticed, copies.get())
            if intact.returncode:
                print(intact.stdout + intact.stderr)
                raise SystemExit("tests that noticed a break also fail without it: see above")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="of name, file or tests")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--list", action="store_true", help="print the breaks, and run nothing")
    options = parser.parse_args()
    breaks = read_breaks()
    problems = [problem for broken in breaks for problem in broken.problems()]
    if problems:
        print("\n".join(problems))
        return 1
    breaks = [b for b in breaks if options.only in " ".join([b.name, b.file, *b.tests])]
    if options.list:
        for broken in breaks:
            print(f"{broken.name}  [bevel/{broken.file}; {', '.join(broken.tests)}]")
        return 0
    if not breaks:
        print(f"no break has {options.only!r} in its name, file or tests")
        return 1
    outcomes = run_breaks(breaks, min(options.workers, len(breaks)))
    missed = [broken.name for broken, outcome in outcomes.items() if outcome.status != "caught"]
    print(f"{len(breaks) - len(missed)} of {len(breaks)} breaks were caught.", *missed, sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
