"""The table of constructors: what each is called with, and how one call of the fuzzer is judged."""

import contextlib
import dataclasses
import resource
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bad_input.domains import Domain

from bevel.errors import BevelError

SECONDS = 10  # of CPU time, which a busy machine does not change
# More than any refused call needs, and less than an array of a billion numbers.
MEMORY = 3 << 30


@dataclasses.dataclass(frozen=True)
class Row:
    """A constructor, and for each argument what it may be and a valid value.

    `together` names arguments that must fit to each other: values inside their domains may be
    refused.
    """

    name: str  # as it is exported: package.name, or package.name.classmethod
    call: Callable[..., Any]
    arguments: Mapping[str, tuple[Domain, Callable[[], Any]]]
    together: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return self.name


def row(
    name: str, call: Callable[..., Any], together: str = "", /, **arguments: tuple[Domain, Any]
) -> Row:
    """A row; valid values that are not functions without arguments are constants."""
    table = {
        key: (domain, value if getattr(value, "made_anew", False) else lambda value=value: value)
        for key, (domain, value) in arguments.items()
    }
    names = frozenset(arguments if together == "all" else together.split())
    assert names <= arguments.keys(), names
    return Row(name, call, table, names)


def made(make: Callable[[], Any]) -> Callable[[], Any]:
    """Marks a function that makes a valid value, for values that are used up."""
    make.made_anew = True  # type: ignore[attr-defined]
    return make


class Hang(BaseException):
    """A call took longer than the limit. Not an Exception, so that nothing catches it."""


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Stops a call after some seconds, and lets it allocate a few GB at most."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise Hang(f"took more than {SECONDS} s")

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def fault(row: Row, changed: Mapping[str, Callable[[], Any]]) -> str | None:
    """What is wrong with the answer to a call with these arguments, or None."""
    values = {name: valid() for name, (_, valid) in row.arguments.items()}
    values |= {name: make() for name, make in changed.items()}
    verdicts = [row.arguments[name][0].judge(values[name]) for name in changed]
    must_refuse = False in verdicts
    must_accept = all(verdict is True for verdict in verdicts) and (
        not changed or (len(changed) == 1 and not row.together & changed.keys())
    )
    shown = ", ".join(f"{name}={_shown(values[name])}" for name in changed)
    call = f"{row.name}({shown})"
    try:
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            row.call(**values)
    except BevelError as error:
        lines = str(error).splitlines()
        if not lines or len(lines) > 4 or max(map(len, lines)) > 1000:
            return f"{call}: a message of {len(lines)} lines, {len(str(error))} characters"
        return f"{call}: refused a valid value: {error}" if must_accept else None
    except Hang as error:
        return f"{call}: {error}"
    except Exception as error:
        if any(callable(values[name]) for name in changed):
            return None  # what the caller's own function raises
        return f"{call}: raw {type(error).__name__}: {str(error)[:120]}"
    return f"{call}: accepted" if must_refuse else None


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) < 60 else text[:56] + " ..."
