"""Running programs on the host, as ourselves or as root, with errors that say what to do."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from airlab.model import AirlabError

_TAIL_LINES = 25


def run(
    argv: Sequence[str | Path],
    *,
    what: str,
    env: Mapping[str, str] | None = None,
    remedy: str = "",
) -> str:
    """Run a program to its end and return its standard output.

    ``what`` names the step in the error message, ``remedy`` says what the person
    can do about it.

    Raises:
        AirlabError: the program is missing or ended with a non-zero status; the
            message carries the last lines it wrote.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(env) if env is not None else None,
            check=False,
        )
    except FileNotFoundError as error:
        raise AirlabError(f"{what}: {words[0]} is not installed; run `make setup`") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        hint = f"\nremedy: {remedy}" if remedy else ""
        raise AirlabError(
            f"{what} failed (exit {done.returncode}): {shlex.join(words)}\n{tail}{hint}"
        )
    return done.stdout


def root_prefix() -> list[str]:
    """What to put before a command that needs root: nothing, or sudo.

    Raises:
        AirlabError: we are not root and there is no sudo.
    """
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        return ["sudo"]
    raise AirlabError(
        "building the lab needs root once (Debian packages, a build chroot): "
        "run `make setup` as root, or install sudo; running experiments needs no root"
    )


def run_root(argv: Sequence[str | Path], *, what: str, remedy: str = "") -> str:
    """Like :func:`run`, as root."""
    return run([*root_prefix(), *argv], what=what, remedy=remedy)


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Let one process at a time do what follows; others wait.  Not to be nested."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
