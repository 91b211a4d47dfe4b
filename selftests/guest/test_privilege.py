"""Who may use a congestion control: every cell of docs/privileges.md, measured.

The tables in that page are written by this test: ``AIRTCP_REWRITE=1`` puts what the kernel just
did into the file, and without it file and kernel must agree to the letter.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from guestlab import Lab
from guestprograms import ALGORITHMS, INSTALL, LIFE_PARAMS, Algorithm, programs

pytestmark = pytest.mark.guest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "privileges.md"
CONTAINERS = DOCS / "containers.md"
BLOCK = re.compile(r"(?<=<!-- measured: begin -->\n).*?(?=<!-- measured: end -->)", re.DOTALL)

NET = "/proc/sys/net/ipv4"
DEFAULT = f"{NET}/tcp_congestion_control"
ALLOWED = f"{NET}/tcp_allowed_congestion_control"
ROUTE = "127.9.0.1"
NAMESPACE = "ip link set lo up\nip netns add child\nip -n child link set lo up\n"
SHOWN = ALGORITHMS[0].cc
"""The name in the page; the results of the other algorithms must be the same."""

STATES = {"absent": "not loaded", "loaded": "loaded", "allowed": "loaded and allowed"}
ACTORS = {"admin": "root", "root": "root without CAP_NET_ADMIN", "user": "another user"}


@dataclass(frozen=True)
class Place:
    """A kind of network namespace; ``enter`` leads there from the initial one."""

    letter: str
    title: str
    enter: str


PLACES = {
    "init": Place("I", "The initial network namespace", "netns init"),
    "child": Place("N", "A network namespace of the initial user namespace", "netns child"),
    "user": Place("U", "A network namespace that a user namespace owns", "userns"),
}


@dataclass(frozen=True)
class Deed:
    """Something one may try; ``label`` stands before the step whose result counts."""

    title: str
    steps: str
    undo: str
    actors: tuple[str, ...] = tuple(ACTORS)


DEEDS = {
    "default": Deed(
        "`sysctl -w net.ipv4.tcp_congestion_control={cc}`",
        "{label}: write {default} {cc}\n",
        "_: write {default} cubic\n",
    ),
    "list": Deed(
        '`sysctl -w net.ipv4.tcp_allowed_congestion_control="reno cubic {cc}"`',
        "{label}: write {allowed} reno cubic {cc}\n",
        "",
    ),
    "setsockopt": Deed(
        '`setsockopt(TCP_CONGESTION, "{cc}")`',
        "socket s\n{label}: set s {cc}\n",
        "close s\n",
    ),
    "route": Deed(
        "`ip route ... congctl {cc}`",
        "{label}: route {route} {cc}\n",
        "_: unroute {route}\n",
    ),
    "travel": Deed(
        "algorithm of a connection over a route that root gave `congctl {cc}`",
        "as admin\n_: route {route} {cc}\nas {actor}\n"
        "socket l\nlisten l {route} 9999\nsocket s\nconnect s {route} 9999\n{label}: get s\n",
        "reset s\nclose l\n_: unroute {route}\n",
        actors=("user",),
    ),
}


def _cell(place: str, deed: str, actor: str, state: str, alg: Algorithm) -> str:
    words = {
        "label": f"{place}.{deed}.{actor}.{state}",
        "cc": alg.cc,
        "default": DEFAULT,
        "allowed": ALLOWED,
        "route": ROUTE,
        "actor": actor,
    }
    lines = ""
    if state != "absent":
        lines += f"host load {alg.module}\n"
    if state == "allowed":
        lines += f"host write {ALLOWED} reno cubic {alg.cc}\n"
    lines += f"as {actor}\n" + DEEDS[deed].steps.format(**words) + "as admin\n"
    lines += f"{words['label']}.then: host loaded {alg.module}\n"
    return lines + DEEDS[deed].undo.format(**words)


def _cctl(lines: str) -> str:
    return f"cctl >>/out/facts <<'END' || exit 1\n{lines}END\n"


def _unloaded(alg: Algorithm) -> str:
    # First it is unloaded, then there is nothing left to unload.
    return f"host until ENOENT unload {alg.module}\n"


def _refuses(place: str, deed: str) -> bool:
    """Is this what some kernels leak a reference at (see _last)?"""
    return place != "init" and deed == "default"


def _places_script(alg: Algorithm) -> str:
    script = ""
    for place, where in PLACES.items():
        lines = "".join(
            _cell(place, name, actor, state, alg) + _unloaded(alg)
            for name, deed in DEEDS.items()
            for actor, state in product(deed.actors, STATES)
            if not _refuses(place, name)
        )
        script += _cctl(f"{where.enter}\n{lines}")
    return script


@dataclass(frozen=True)
class Story:
    """Steps one after the other; ``{label}`` stands before those whose results are told."""

    title: str
    steps: str


STORIES = [
    Story(
        "the initial namespace makes `{cc}` its default and takes that back: "
        "`setsockopt` by another user there, and in a user namespace's network",
        "host write {default} {cc}\nhost write {default} cubic\nas user\nsocket s\n"
        "{label}.1: set s {cc}\nclose s\nas admin\nuserns\nas user\nsocket s\n"
        "{label}.2: set s {cc}\nclose s\n",
    ),
    Story(
        "after that the list is written without `{cc}`: `setsockopt` by another user",
        "host write {default} {cc}\nhost write {default} cubic\nhost write {allowed} reno cubic\n"
        "as user\nsocket s\n{label}.1: set s {cc}\nclose s\n",
    ),
    Story(
        "the list is written with a name that no module has: result, and the list after it",
        "host load {module}\n{label}.1: write {allowed} reno cubic nosuch\n"
        "{label}.2: read {allowed}\n",
    ),
    Story(
        "`{cc}` is allowed, the module is unloaded and loaded: `setsockopt` by another user",
        "host load {module}\nhost write {allowed} reno cubic {cc}\nhost unload {module}\n"
        "host load {module}\nas user\nsocket s\n{label}.1: set s {cc}\nclose s\n",
    ),
    Story(
        "the list, once `{cc}` is allowed, as read in another namespace",
        "host load {module}\nhost write {allowed} reno cubic {cc}\n"
        "netns child\n{label}.1: read {allowed}\n",
    ),
    Story(
        "a namespace makes the allowed `{cc}` its default: references before and after; "
        "the initial namespace's default",
        "host load {module}\nhost write {allowed} reno cubic {cc}\nnetns child\n"
        "{label}.1: refs {module}\nwrite {default} {cc}\n{label}.2: refs {module}\n"
        "write {default} cubic\n{label}.3: host read {default}\n",
    ),
    Story(
        "the default of a user namespace's network made while the initial default is `{cc}`; "
        "the default of a namespace that was there before",
        "host write {default} {cc}\nuserns\n{label}.1: read {default}\n"
        "host netns child\n{label}.2: host read {default}\nhost netns init\n"
        "write {default} cubic\nhost write {default} cubic\n",
    ),
    Story(
        "a route names an algorithm that no module has: `ip route ... congctl nosuch`",
        "{label}.1: route {route} nosuch\n",
    ),
    Story(
        "the sender's route says `congctl {cc} lock`: `setsockopt` by root on the connected socket",
        "host load {module}\nroute {route} {cc} lock\nsocket l\nlisten l {route} 9999\nsocket s\n"
        "connect s {route} 9999\n{label}.1: set s reno\n{label}.2: get s\nreset s\nclose l\n"
        "unroute {route}\n",
    ),
    Story(
        "a namespace makes `{cc}` its default, refused: references to the module before and after",
        "host load {module}\nnetns child\n{label}.1: refs {module}\n_: write {default} {cc}\n"
        "{label}.2: refs {module}\n",
    ),
]


def _story(number: int, alg: Algorithm) -> str:
    return STORIES[number - 1].steps.format(
        label=f"S{number}", cc=alg.cc, module=alg.module,
        default=DEFAULT, allowed=ALLOWED, route=ROUTE,
    )  # fmt: skip


def _stories_script(alg: Algorithm) -> str:
    return "".join(_cctl(_story(n, alg) + _unloaded(alg)) for n in range(1, len(STORIES)))


def _last(alg: Algorithm) -> list[str]:
    """Steps with which some kernels leak a reference: the module then stays until reboot."""
    cells = [
        f"{PLACES[place].enter}\n" + _cell(place, deed, actor, state, alg)
        for place, deed in product(PLACES, DEEDS)
        if _refuses(place, deed)
        for actor, state in product(DEEDS[deed].actors, STATES)
    ]
    return [*cells, _story(len(STORIES), alg)]


def _until_stuck(steps: list[tuple[int, str]], alg: Algorithm) -> str:
    """Take the steps one by one until the module cannot be unloaded any more."""
    script = ""
    for number, lines in steps:
        script += _cctl(f"{lines}_: host unload {alg.module}\n")
        script += f"fact last {number}\n[ -d /sys/module/{alg.module} ] && exit 0\n"
    return script + "exit 0\n"


@pytest.fixture(scope="module", params=LIFE_PARAMS, ids=lambda alg: alg.cc)
def alg(request: pytest.FixtureRequest) -> Algorithm:
    found: Algorithm = request.param
    return found


@pytest.fixture(scope="module")
def measured(lab: Lab, alg: Algorithm) -> dict[str, str]:
    """All results. Where the kernel leaks references, one guest a leak."""
    steps = list(enumerate(_last(alg)))
    script = _places_script(alg) + _stories_script(alg)
    facts: dict[str, str] = {}
    while steps:
        text = INSTALL + NAMESPACE + script + _until_stuck(steps, alg)
        now = lab.script(text, programs()).facts
        facts.update(now)
        steps = [step for step in steps if step[0] > int(now["last"])]
        script = ""
    return facts


@dataclass(frozen=True)
class Row:
    """A numbered row of a table: what, who, and a result per state of the module."""

    number: str
    what: str
    who: str
    results: dict[str, str]


def _rows(facts: dict[str, str], place: str) -> list[Row]:
    made: list[Row] = []
    for name, deed in DEEDS.items():
        for actor in deed.actors:
            results = {}
            for state in STATES:
                label = f"{place}.{name}.{actor}.{state}"
                loads = state == "absent" and facts[f"{label}.then"] == "yes"
                results[state] = facts[label] + (", loads it" if loads else "")
            number = f"{PLACES[place].letter}{len(made) + 1}"
            made.append(Row(number, deed.title.format(cc=SHOWN), ACTORS[actor], results))
    return made


def _told(facts: dict[str, str], number: int) -> str:
    """A story's results in order."""
    label = f"S{number}."
    return "; ".join(f"`{value}`" for name, value in facts.items() if name.startswith(label))


def _render(facts: dict[str, str]) -> str:
    text = ""
    for place, where in PLACES.items():
        text += f"### {where.title}\n\n| | what | who | {' | '.join(STATES.values())} |\n"
        text += f"|{'---|' * (3 + len(STATES))}\n"
        for row in _rows(facts, place):
            cells = " | ".join(f"`{result}`" for result in row.results.values())
            text += f"| {row.number} | {row.what} | {row.who} | {cells} |\n"
        text += "\n"
    text += "### One thing after another\n\n| | what | results |\n|---|---|---|\n"
    for number, story in enumerate(STORIES, 1):
        text += f"| S{number} | {story.title.format(cc=SHOWN)} | {_told(facts, number)} |\n"
    return text


@pytest.fixture(scope="module")
def facts(measured: dict[str, str], alg: Algorithm) -> dict[str, str]:
    """What was measured, as if the algorithm had the name that the page shows."""
    name = re.compile(rf"\b{re.escape(alg.cc)}\b")
    return {label: name.sub(SHOWN, value) for label, value in measured.items()}


def _differs_here(line: str, page: str, release: str) -> bool:
    """Is this line in the page's table of kernels that differ?"""
    series = ".".join(release.split(".")[:2])
    name, results = line.split("|")[1].strip(), line.rstrip(" |").split("|")[-1].strip()
    return f"| {name} | {series} | {results} |" in page


def test_the_page_says_what_the_kernel_does(
    facts: dict[str, str], lab: Lab, alg: Algorithm
) -> None:
    now = _render(facts)
    text = PAGE.read_text()
    if os.environ.get("AIRTCP_REWRITE") and alg.cc == SHOWN:
        PAGE.write_text(BLOCK.sub(lambda _: now, text))
        pytest.skip(f"{PAGE.name} was rewritten")
    found = BLOCK.search(text)
    assert found, f"{PAGE} has no measured block"
    release = lab.engine.image.kernel.release
    told, there = found.group().splitlines(), now.splitlines()
    assert len(told) == len(there), "AIRTCP_REWRITE=1 writes what was measured into the page"
    wrong = [
        (is_, says)
        for is_, says in zip(there, told, strict=True)
        if is_ != says and not _differs_here(is_, text, release)
    ]
    assert not wrong, f"{release}: AIRTCP_REWRITE=1 writes what was measured into the page"


def test_the_containers_page_quotes_cells_that_exist(facts: dict[str, str]) -> None:
    cells = {
        f"{row.number} {state}": result
        for place in PLACES
        for row in _rows(facts, place)
        for state, result in row.results.items()
    }
    told = {f"S{n}": re.findall(r"`([^`]*)`", _told(facts, n)) for n in range(1, len(STORIES) + 1)}
    quoted = re.findall(r"`([^`]+)` ([INU]\d+ \w+|S\d+)\b", CONTAINERS.read_text())
    assert len(quoted) > 30, "the page hardly quotes the tables"
    wrong = [
        (result, where)
        for result, where in quoted
        if result not in ([cells[where]] if where in cells else told.get(where, []))
    ]
    assert not wrong, f"{CONTAINERS.name} says what was not measured: {wrong}"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("deed", [deed for deed in DEEDS if deed != "travel"])
def test_nobody_else_gets_anywhere_without_leave(
    facts: dict[str, str], place: str, deed: str
) -> None:
    """What the kernel promises, whatever the page says: no table may ever show otherwise."""
    for state in ("absent", "loaded"):
        assert facts[f"{place}.{deed}.user.{state}"] in ("ENOENT", "EPERM", "EACCES")
    assert facts[f"{place}.{deed}.user.absent.then"] == "no", "the module was loaded"
    if deed == "default" and place != "init":
        assert facts[f"{place}.{deed}.admin.loaded"] == "EPERM"
        assert facts[f"{place}.{deed}.admin.allowed"] == "ok"
