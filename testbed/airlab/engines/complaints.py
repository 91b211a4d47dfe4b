"""What a guest's kernel says against itself, and which of it makes a run worthless.

Everything does, with one exception: data races that KCSAN found in the kernel's own code.  A
race is the kernel's own when neither access was made by a module that did not come with the
kernel, nor by a function that such a module called for its own data (two calls deep, as when a
timer of the module's is started).  What lies further down has only called a part of the
kernel that races with itself, as the trace ring buffer does when it reads the clock; what lies
below an interrupt was interrupted.  Such races are known by their reports (:func:`races`)
and tell nothing about the modules under test.
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
_STACK = re.compile(
    r"^[^\n]*(?:read|write) (?:\([^)]*\) )?to 0x[^\n]* by [^\n]*:\s*\n"
    r"(?P<frames>(?:[^\n]*\+0x[0-9a-f]+/0x[0-9a-f]+[^\n]*\n)+)",
    re.MULTILINE,
)
_FRAME = re.compile(r"(\w+)[\w.]*\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(\w+)\])?")
_INTERRUPT = re.compile(r"asm_(?:sysvec|common_interrupt|exc)")
_ACCESS_FRAMES = 3
_SHOWN_LINES = 60


@dataclass(frozen=True)
class Race:
    """A report of KCSAN.

    Attributes:
        title: kind of race and the two functions, as the kernel words it.
        modules: the modules that made either access, or had it made for them.
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
    made = (_accessed(stack["frames"]) for stack in _STACK.finditer(found[0]))
    return Race(found["title"].strip(), frozenset().union(*made), found[0])


def _accessed(frames: str) -> set[str]:
    """The modules among the frames that an access belongs to, the innermost first."""
    made = set()
    for name, module in _FRAME.findall(frames)[:_ACCESS_FRAMES]:
        if _INTERRUPT.match(name):
            break
        if module:
            made.add(module)
    return made
