"""Fails single file operations below a folder, at the calls of the operating system.

with FileFaults(folder) as log: ...             # records every operation
with FileFaults(folder, fault): ...             # makes one of them fail

It sees what Python code does through `os`, `open` and `flock`, in every thread. It does not see
what Orbax writes in C++: tests/training/test_folder_run.py limits the size of files for that.
"""

import builtins
import collections
import dataclasses
import errno
import fcntl
import io
import os
import re
import threading

# Functions by the number of their arguments that are paths or descriptors.
OPERATIONS = {
    os: {
        **dict.fromkeys(("open", "write", "pread", "fsync", "ftruncate", "unlink", "remove"), 1),
        **dict.fromkeys(("mkdir", "rmdir", "chmod", "fchmod", "utime", "stat", "lstat"), 1),
        **dict.fromkeys(("scandir", "listdir"), 1),
        **dict.fromkeys(("rename", "replace", "link"), 2),
    },
    fcntl: {"flock": 1},
    io: {"open": 1},
    builtins: {"open": 1},
}
# Parts of names that differ from run to run.
RANDOM = re.compile(r"(begin-|\.)[0-9a-f]{8,16}\b|tmp-\d+|(?<=json\.)\d+|(?<=head\.)\d+")
WRITES = ("write", "fsync", "ftruncate", "unlink", "remove", "mkdir", "rmdir", "rename", "replace")
WRITES += ("link", "chmod", "fchmod", "utime")


@dataclasses.dataclass(frozen=True)
class Fault:
    """The `count`-th time that an operation is done on a path, it fails with an error number."""

    operation: str
    path: str
    count: int
    number: int

    def __str__(self):
        return f"{self.operation} {self.path} #{self.count} {errno.errorcode[self.number]}"


class FileFaults:
    """Counts the operations below a folder, as `seen[operation, path]`, and fails one of them."""

    def __init__(self, folder, fault=None):
        self.folder, self.fault, self.happened = os.path.realpath(folder), fault, False
        self.seen = collections.Counter()
        self._lock, self._busy = threading.Lock(), threading.local()
        self._originals = []

    def __enter__(self):
        for owner, names in OPERATIONS.items():
            for name, count in names.items():
                original = getattr(owner, name)
                self._originals.append((owner, name, original))
                setattr(owner, name, self._wrapped(name, original, count))
        return self

    def __exit__(self, *error):
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        self._originals = []

    def _wrapped(self, name, original, paths):
        def call(*args, **kwargs):
            if getattr(self._busy, "now", False) or len(args) < paths:
                return original(*args, **kwargs)
            self._busy.now = True
            try:
                found = [self._place(x, kwargs.get("dir_fd")) for x in args[:paths]]
                self._count(name, next(filter(None, found), None), original, args)
            finally:
                self._busy.now = False
            return original(*args, **kwargs)

        return call

    def _place(self, x, dir_fd):
        """The path below the folder that an argument means, or None if it is elsewhere."""
        try:
            if isinstance(x, int):
                path = os.readlink(f"/proc/self/fd/{x}")
            else:
                path = os.fsdecode(os.fspath(x))
                if dir_fd is not None:
                    path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        except (OSError, TypeError):
            return None
        path = os.path.abspath(path)
        if path != self.folder and not path.startswith(self.folder + "/"):
            return None
        return RANDOM.sub("*", os.path.relpath(path, self.folder))

    def _count(self, name, path, original, args):
        if path is None:
            return
        with self._lock:
            self.seen[name, path] += 1
            fault = self.fault
            if fault is None or (name, path) != (fault.operation, fault.path):
                return
            if self.seen[name, path] != fault.count:
                return
            self.happened = True
        if name == "write":
            original(args[0], bytes(args[1])[: len(args[1]) // 2])  # a full disk takes a part
        raise OSError(fault.number, os.strerror(fault.number), os.path.join(self.folder, path))
