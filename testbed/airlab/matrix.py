"""The kernel matrix: one source, many kernels and compilers (``make matrix``).

Each entry is built with every warning an error, read by sparse and, where it is a kernel that
boots here, tried by the module tests in a guest.  What came out is a table, ``docs/matrix.md``.
Results are kept in the cache, so that a part can be done again without the rest.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from airlab import kernels, modules, paths
from airlab.labroot import LabRoot, ensure_root, tree_digest
from airlab.model import EXIT_FAILED, EXIT_OK, EXIT_USAGE, AirlabError

GUEST_TESTS = (
    *("test_tcp_j_*.py", "test_tcp_cherry_*.py", "test_imtcp*.py"),
    *("test_kcompat.py", "test_integrity.py", "test_cost.py"),
)
"""The tests of selftests/guest that are about the modules; the rest is about the laboratory."""

DOCUMENT = paths.REPO / "docs" / "matrix.md"


@dataclass(frozen=True)
class Entry:
    """A way to build the modules.

    Attributes:
        name: what the table and ``--only`` call it.
        root: the Debian root it is built in (:mod:`airlab.labroot`).
        track: the kernel series of :data:`airlab.kernels.TRACKS` to boot, ``""`` for none.
        make: what ``make`` is told beside the usual.
        headers: build against changed headers (:func:`airlab.modules.other_headers`).
        expect: answers of the probes that are known beforehand.
    """

    name: str
    root: str
    track: str = ""
    make: tuple[str, ...] = ()
    headers: str = ""
    expect: Mapping[str, int] = field(default_factory=dict)


# Debian's header package names its compiler, so LLVM=1 alone would not choose another.
_CLANG = ("LLVM=1", "CC=clang", "LD=ld.lld")

ENTRIES = (
    Entry("6.1", "bookworm", track="6.1", expect={"CWND_EVENT_TX_START": 0, "TSO_SEGS": 0}),
    Entry("6.12", "trixie", track="6.12", expect={"CWND_EVENT_TX_START": 0, "TSO_SEGS": 0}),
    Entry("7", "trixie-backports", track="7", expect={"CWND_EVENT_TX_START": 1, "TSO_SEGS": 0}),
    Entry("6.12 clang", "trixie-clang", make=_CLANG, headers="clang"),
    Entry("6.1 i386", "bookworm-i386"),
    Entry("6.12 bbr3", "trixie", headers="bbr3", expect={"TSO_SEGS": 1}),
    Entry("7 bbr3", "trixie-backports", headers="bbr3", expect={"TSO_SEGS": 1}),
)
"""The matrix.  Another kernel is another line here (and its series in ``kernels.TRACKS``)."""


@dataclass
class Guest:
    """What the module tests said in a booted kernel; ``notes`` are the failures and skips."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass
class Row:
    """What came out of an entry; ``build`` and ``sparse`` are ``ok`` or why not."""

    name: str
    release: str
    date: str
    sources: str
    compiler: str = "-"
    build: str = "-"
    sparse: str = "-"
    answers: dict[str, int] = field(default_factory=dict)
    guest: Guest | None = None

    @property
    def green(self) -> bool:
        """Whether nothing failed."""
        guest = self.guest
        return self.build == self.sparse == "ok" and (guest is None or not guest.failed)


def sources_digest() -> str:
    """Names the sources of the modules and of the test modules."""
    return tree_digest(paths.MODULES_SOURCE, paths.TEST_MODULES_SOURCE)[:12]


def examine(entry: Entry, *, jobs: int, guests: bool) -> Row:
    """Build an entry and, if it boots and that is wanted, run the module tests on it."""
    root = ensure_root(entry.root)
    release = root.headers()[-1]
    today = datetime.now(UTC).date().isoformat()
    row = Row(entry.name, release, today, sources_digest())
    _build(entry, root, row)
    if entry.track and guests and row.build == "ok":
        row.guest = _run_tests(entry.track, jobs)
    return row


def _build(entry: Entry, root: LabRoot, row: Row) -> None:
    kdir = f"/lib/modules/{row.release}/build"
    if entry.headers:
        name = f"matrix-{entry.headers}"
        kdir = modules.other_headers(root, entry.headers, row.release, name)
    tag = "matrix-" + entry.name.replace(" ", "-")
    shop = modules.workshop(root, kdir, tag, [paths.METER_SOURCE, paths.TSOFLOOR_SOURCE])
    try:
        shop.make(*modules.STRICT, *entry.make)
        row.build = "ok"
        row.answers = shop.answers()
        row.compiler = compiler_of(shop.built()[0].read_bytes())
        wrong = {k: v for k, v in entry.expect.items() if row.answers.get(k) != v}
        if wrong:
            row.build = f"probes should answer {wrong}"
        said = shop.make("sparse", *entry.make, what="sparse on")
        row.sparse = "ok" if said.count("CHECK") >= len(shop.folders) else "did not run"
    except AirlabError as error:
        print(error, file=sys.stderr)
        why = str(error).splitlines()[0].split(":")[0]
        if row.build == "ok":
            row.sparse = why
        else:
            row.build = why
    finally:
        shop.clear()


def compiler_of(module: bytes) -> str:
    """The compiler that left its name in a module."""
    found = re.search(rb"GCC: \([^)]*\) ([\d.]+)|clang version ([\d.]+)", module)
    if found is None:
        return "unknown"
    gcc, clang = found.groups()
    return f"gcc {gcc.decode()}" if gcc else f"clang {clang.decode()}"


def _run_tests(track: str, jobs: int) -> Guest:
    """Run the module tests on a series' kernel, in a pytest of their own."""
    kernels.fetch(track)
    report = paths.cache() / "matrix" / f"{track}.xml"
    report.unlink(missing_ok=True)
    folder = paths.REPO / "selftests" / "guest"
    files = [str(file) for glob in GUEST_TESTS for file in sorted(folder.glob(glob))]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-n",
        str(jobs),
        f"--junitxml={report}",
    ]
    begin = time.monotonic()
    done = subprocess.run([*command, f"--kernel={track}", *files], cwd=paths.REPO, check=False)
    seconds = time.monotonic() - begin
    if not report.is_file():
        status = f"pytest ended with status {done.returncode} and no report"
        return Guest(failed=1, seconds=seconds, notes=[status])
    return read_report(report.read_text(), seconds)


def read_report(xml: str, seconds: float) -> Guest:
    """Count the tests of a JUnit report, and name those that failed or were skipped."""
    guest = Guest(seconds=round(seconds))
    for case in ET.fromstring(xml).iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        bad = case.find("failure") if case.find("error") is None else case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            guest.failed += 1
            guest.notes.append(f"FAILED {name}: {_first_line(bad)}")
        elif skip is not None:
            guest.skipped += 1
            guest.notes.append(f"skipped {name}: {_first_line(skip)}")
        else:
            guest.passed += 1
    return guest


def _first_line(element: ET.Element) -> str:
    return (element.get("message") or "").split("\n")[0].strip()[:200]


HEAD = """\
# Kernel matrix

Made by `make matrix`; not to be edited. One source, every warning an error (`W=1 -Werror`), read by sparse.
"bbr3" are that kernel's headers with `tso_segs` in the place of `min_tso_segs`, as in trees with BBRv3; "i386" is the
32-bit build, which would not link if a 64-bit division had no helper; "clang" are headers that gcc made, with clang's
answers in the places where the configuration asks about the compiler. Guest tests are the module tests of
`selftests/guest` in a booted, unpatched kernel with `panic_on_warn`.
"""  # noqa: E501


def document(rows: Sequence[Row]) -> str:
    """The text of ``docs/matrix.md``."""
    names = sorted({name for row in rows for name in row.answers})
    head = ("build", "kernel", "compiler", "W=1", "sparse", "guest tests", "seconds", "date")
    lines = [
        *_table(head, [_cells(row) for row in rows]),
        "",
        "What the headers have, found out by compiling (`modules/probes`):",
        "",
        *_table(
            ("build", *(f"`{name.lower()}`" for name in names)),
            [(r.name, *(_answer(r.answers.get(n)) for n in names)) for r in rows],
        ),
    ]
    notes = [f"* {r.name}: {note}" for r in rows if r.guest for note in r.guest.notes]
    return "\n".join([HEAD, *lines, *(["", *notes] if notes else []), ""])


def _cells(row: Row) -> tuple[str, ...]:
    made = (row.name, row.release, row.compiler, row.build, row.sparse)
    return (*made, *_tested(row.guest), row.date)


def _tested(guest: Guest | None) -> tuple[str, str]:
    if guest is None:
        return "-", "-"
    counts = [f"{guest.passed} passed"]
    counts += [f"**{guest.failed} failed**"] if guest.failed else []
    counts += [f"{guest.skipped} skipped"] if guest.skipped else []
    return ", ".join(counts), f"{guest.seconds:.0f}"


def _answer(value: int | None) -> str:
    return {None: "-", 0: "no", 1: "yes"}[value]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _stored(name: str) -> Path:
    return paths.cache() / "matrix" / f"{name.replace(' ', '-')}.json"


def load(name: str) -> Row | None:
    """An entry's row from an earlier run, if it was made from the present sources."""
    file = _stored(name)
    if not file.is_file():
        return None
    data = json.loads(file.read_text())
    guest = Guest(**data.pop("guest")) if data["guest"] else data.pop("guest")
    row = Row(**data, guest=guest)
    return row if row.sources == sources_digest() else None


def _save(row: Row) -> None:
    file = _stored(row.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(row), indent=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Build and try the matrix, or a part of it; returns the exit status."""
    parser = argparse.ArgumentParser("make matrix", description=__doc__)
    parser.add_argument("--only", metavar="NAME,...", help="these entries; keep the other rows")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="guests at once (2)")
    parser.add_argument("--no-guests", action="store_true", help="build only")
    parser.add_argument("--out", type=Path, default=DOCUMENT, metavar="FILE")
    args = parser.parse_args(argv)
    known = [entry.name for entry in ENTRIES]
    wanted = args.only.split(",") if args.only else known
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"matrix: --only {unknown[0]}: not one of: {', '.join(known)}", file=sys.stderr)
        return EXIT_USAGE
    rows = []
    for entry in ENTRIES:
        row = load(entry.name)
        if entry.name in wanted:
            print(f"matrix: {entry.name}", flush=True)
            row = examine(entry, jobs=args.jobs, guests=not args.no_guests)
            _save(row)
        if row is not None:
            rows.append(row)
    text = document(rows)
    args.out.write_text(text)
    print(text)
    return EXIT_OK if all(row.green for row in rows) else EXIT_FAILED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AirlabError as error:
        print(f"matrix: error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
