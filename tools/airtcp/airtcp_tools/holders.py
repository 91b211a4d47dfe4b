"""What still holds an algorithm's module: sockets, namespaces' defaults, other modules.

Each of them is one reference, so what is found can be counted against the kernel's own number.
A route is no reference: it keeps the algorithm's name, and takes effect again when it is back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airtcp_tools import algorithms_of, module_of
from airtcp_tools.system import ToolError, read, run

PROC = Path("/proc")
_NAMED_NAMESPACES = (Path("/run/netns"), Path("/run/docker/netns"))
_USERS = re.compile(r"\busers:\(\((.*)\)\)")
_USER = re.compile(r'"([^"]*)",pid=(\d+)')
# Words that `ss` may print before the algorithm's name.
_FLAGS = {"ts", "sack", "ecn", "ecnseen", "fastopen"}
_DEFAULT = "tcp_congestion_control"


@dataclass(frozen=True)
class Namespace:
    """A network namespace: how to enter it, and what people know it by."""

    entry: str
    label: str


@dataclass(frozen=True)
class Socket:
    """A socket with one of the module's algorithms; ``users`` are programs with process ids."""

    namespace: str
    state: str
    local: str
    peer: str
    users: tuple[str, ...]


@dataclass(frozen=True)
class Holders:
    """All that was found to hold an algorithm's module, and the kernel's count of references."""

    algorithm: str
    module: str
    loaded: bool
    references: int = 0
    sockets: tuple[Socket, ...] = ()
    defaults: tuple[Namespace, ...] = ()
    modules: tuple[str, ...] = ()
    routes: tuple[str, ...] = field(default=())

    @property
    def unseen(self) -> int:
        """References that nobody was found for."""
        known = len(self.sockets) + len(self.defaults) + len(self.modules)
        return max(0, self.references - known)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "unseen": self.unseen}


def namespaces() -> list[Namespace]:
    """Every network namespace that a process is in or that has a name, ours first."""
    found: dict[int, Namespace] = {}
    for path, label in _candidates():
        try:
            inode = path.stat().st_ino
        except OSError:  # the process has ended, or the name is a stale file
            continue
        found.setdefault(inode, Namespace(str(path), label))
    return list(found.values())


def _candidates() -> Iterator[tuple[Path, str]]:
    yield PROC / "self/ns/net", "this namespace"
    for folder in _NAMED_NAMESPACES:
        if folder.is_dir():
            for file in sorted(folder.iterdir()):
                yield file, f"namespace {file.name}"
    for process in sorted(
        (p for p in PROC.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
    ):
        name = read(process / "comm") or "?"
        yield process / "ns/net", f"namespace of {name} (pid {process.name})"


def inside(namespace: Namespace, argv: list[str], *, what: str) -> str:
    """Run a program in a namespace and return what it said."""
    return run(["nsenter", f"--net={namespace.entry}", *argv], what=what)


def parse_sockets(text: str, algorithms: Collection[str], namespace: str) -> list[Socket]:
    """The sockets with one of the algorithms in the output of ``ss -H -O -n -t -a -p -i``."""
    found = []
    for line in text.splitlines():
        users = _USERS.search(line)
        plain = line[: users.start()] + line[users.end() :] if users else line
        words = plain.split()
        name = next((w for w in words[5:] if w not in _FLAGS), None)
        if name not in algorithms:
            continue
        programs = _USER.findall(users.group(1)) if users else []
        named = tuple(f"{program} (pid {pid})" for program, pid in programs)
        found.append(Socket(namespace, words[0], words[3], words[4], named))
    return found


def find(algorithm: str) -> Holders:
    """Everything that holds an algorithm's module now, through this or another of its names.

    Raises:
        ToolError: not root, or a program that is needed is missing.
    """
    module = module_of(algorithm)
    algorithms = algorithms_of(module)
    folder = Path("/sys/module") / module
    if not folder.is_dir():
        return Holders(algorithm, module, loaded=False)
    sockets: list[Socket] = []
    defaults: list[Namespace] = []
    routes: list[str] = []
    for space in namespaces():
        what = f"looking into {space.label}"
        try:
            default = inside(space, ["cat", f"/proc/sys/net/ipv4/{_DEFAULT}"], what=what).strip()
        except ToolError:
            if Path(space.entry).exists():
                raise
            continue  # its last process has just ended
        if default in algorithms:
            defaults.append(space)
        said = inside(space, ["ss", "-H", "-O", "-n", "-t", "-a", "-p", "-i"], what=what)
        sockets += parse_sockets(said, algorithms, space.label)
        routes += _routes_with(space, algorithms)
    return Holders(
        algorithm,
        module,
        loaded=True,
        references=int(read(folder / "refcnt") or 0),
        sockets=tuple(sockets),
        defaults=tuple(defaults),
        modules=tuple(sorted(p.name for p in (folder / "holders").iterdir())),
        routes=tuple(routes),
    )


def _routes_with(space: Namespace, algorithms: Collection[str]) -> list[str]:
    names = "|".join(map(re.escape, algorithms))
    found = []
    for version in ("-4", "-6"):
        argv = ["ip", "-o", version, "route", "show", "table", "all"]
        for line in inside(space, argv, what=f"reading the routes of {space.label}").splitlines():
            if re.search(rf"\bcongctl (lock )?({names})( |$)", line):
                found.append(f"{space.label}: {line.strip()}")
    return found


def reset_default(space: Namespace, algorithm: str) -> None:
    """Make another algorithm a namespace's default.

    Raises:
        ToolError: the kernel refused.
    """
    command = f"echo {algorithm} >/proc/sys/net/ipv4/{_DEFAULT}"
    inside(space, ["sh", "-c", command], what=f"setting the default of {space.label}")
