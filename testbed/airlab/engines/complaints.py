"""What a guest's kernel says against itself, and which of it makes a run worthless.

Everything does, with one exception: data races that KCSAN found in the kernel's own code.  A
race is the kernel's own when no frame of either stack lies in a module that did not
come with the kernel.  Such races are known by their reports (:func:`races`) and tell
nothing about the modules under test.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from airlab.engines.base import EngineError

_TROUBLE = re.compile(
    r"Kernel panic|BUG:|Oops:|WARNING: (?!CPU features)|"
    r"rcu: INFO: rcu_\w+ (?:self-)?detected stall|general protection fault|"
    r"Unable to handle|soft lockup|hung_task|"
    # Debug kernels only; what is not here says BUG: or WARNING:.
    r"UBSAN: |ODEBUG: |INFO: trying to register non-static key|INFO: task \S+ blocked|"
    r"unreferenced object 0x"
)
_RACE = re.compile(
    r"^[^\n]*={60,}\s*\n[^\n]*BUG: KCSAN: (?P<title>[^\n]*)\n.*?^[^\n]*={60,}\s*$",
    re.MULTILINE | re.DOTALL,
)
_FRAME = re.compile(r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[(\w+)\]")
_SHOWN_LINES = 60


@dataclass(frozen=True)
class Race:
    """A report of KCSAN.

    Attributes:
        title: kind of race and the two functions, as the kernel words it.
        modules: the modules whose code is on either stack.
        text: the whole report.
    """

    title: str
    modules: frozenset[str]
    text: str


def races(log: str) -> list[Race]:
    """All data races that a console log reports, in order."""
    return [_race(found) for found in _RACE.finditer(log.replace("\r", ""))]


def refuse(log: str, own_modules: Collection[str]) -> None:
    """Raise what the kernel complained of, if anything counts.

    Args:
        log: the console.
        own_modules: names of the modules that came with the kernel.

    Raises:
        EngineError: the complaint, with its text as ``console``.
    """
    text = _RACE.sub(
        lambda found: "" if _race(found).modules <= set(own_modules) else found[0],
        log.replace("\r", ""),
    )
    found = _TROUBLE.search(text)
    if not found:
        return
    kind = "warning" if found.group().startswith("WARNING") else "panic"
    line = text[text.rfind("\n", 0, found.start()) + 1 :].splitlines()[0].strip()
    # A WARN() says its piece between this mark and the line that we found.
    cut = text.rfind("[ cut here ]", 0, found.start())
    start = text.rfind("\n", 0, cut if cut >= 0 else found.start()) + 1
    shown = "\n".join(text[start:].splitlines()[:_SHOWN_LINES])
    raise EngineError(kind, f"the guest's kernel complained: {line}", shown)


def _race(found: re.Match[str]) -> Race:
    return Race(found["title"].strip(), frozenset(_FRAME.findall(found[0])), found[0])
