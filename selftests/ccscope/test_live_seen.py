"""``ccscope live`` as people see it: in a terminal (tmux) and a headless Chromium.

Pictures go to ``$CCSCOPE_PICTURES`` when that is set; those of docs/pictures were made so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ccscope.live.feeds import ReplayFeed
from ccscope.live.terminal import LiveApp
from ccscope.recording import Recording

sys.path.insert(0, str(Path(__file__).parent))
from browser import Page, browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed"),
]
RECORDING = Path(__file__).with_name("causes")
CCSCOPE = [sys.executable, "-m", "ccscope"]
CURVE = re.compile("[\u2801-\u28ff]")
WAIT_S = 60.0
SETTLE_S = 0.6


def _picture(name: str, folder: Path) -> Path:
    wanted = os.environ.get("CCSCOPE_PICTURES")
    return (Path(wanted) if wanted else folder) / name


class Terminal:
    """ccscope in a pane of a tmux server of its own, all of whose output is kept."""

    def __init__(self, folder: Path, size: tuple[int, int], *argv: str) -> None:
        self.output = folder / "output"
        self._server = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]
        self._status = folder / "status"
        words = " ".join([*CCSCOPE, "live", *argv])
        script = folder / "run"
        # The output starts when tmux is told where it goes.
        script.write_text(
            f"while ! [ -e {folder}/go ]; do sleep 0.05; done\n{words}\necho $? >{self._status}\n"
            "stty -a >stty; sleep 1000\n"
        )
        self._tmux(
            *("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(folder)),
            *("-e", "COLORTERM=truecolor", f"sh {script}"),
        )
        self._tmux("pipe-pane", "-O", f"cat >{self.output}")
        (folder / "go").touch()

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            [*self._server, *words], capture_output=True, text=True, check=True
        ).stdout

    def lines(self) -> list[str]:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p", "-N").split("\n")[:-1]

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def wait(self, what: Callable[[list[str]], bool], why: str) -> list[str]:
        """Wait until the screen is as it should; returns it."""
        end = time.monotonic() + WAIT_S
        while not what(lines := self.lines()):
            assert time.monotonic() < end, why + "\n" + "\n".join(lines)
            time.sleep(0.1)
        return lines

    def status(self) -> int:
        """The program's exit status, once it has ended."""
        self.wait(lambda _: self._status.is_file() and bool(self._status.read_text()), "the end")
        return int(self._status.read_text())

    def close(self) -> None:
        """End everything."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@contextlib.contextmanager
def _terminal(folder: Path, size: tuple[int, int], *argv: str) -> Iterator[Terminal]:
    made = Terminal(folder, size, *argv)
    try:
        yield made
    finally:
        made.close()


def _frame(lines: list[str]) -> tuple[str, str]:
    """The rows of the upper graph between its borders, and its time axis."""
    top = next(i for i, line in enumerate(lines) if "segments" in line) + 1
    bottom = next(i for i in range(top + 1, len(lines)) if "┳" in lines[i])
    return "\n".join(lines[top + 1 : bottom]), lines[bottom + 1]


def _complete(lines: list[str]) -> bool:
    return bool(CURVE.search("".join(lines))) and "Quit" in lines[-1]


def _ticks(axis: str) -> list[float]:
    return [float(word) for word in axis.split()]


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
def test_curves_marks_axes_and_keys(tmp_path: Path, size: tuple[int, int]) -> None:
    argv = ("--replay", str(RECORDING), "--speed", "20x", "--span", "10s")
    with _terminal(tmp_path, size, *argv) as terminal:
        terminal.wait(lambda x: "ended" in x[0], "the end of the replay")
        time.sleep(SETTLE_S)
        lines = terminal.lines()
        assert len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        labels = Recording.open(RECORDING).flows
        seen = set()
        for _ in labels:
            lines = terminal.lines()
            seen.add(lines[0].split()[0])
            graph, axis = _frame(lines)
            assert len(CURVE.findall(graph)) > 20
            assert len(_ticks(axis)) >= 3
            terminal.press("n")
            terminal.wait(lambda x, old=lines[0]: x[0] != old, "another flow")
            time.sleep(SETTLE_S)
        assert seen == set(labels)
        marks = set()
        for _ in labels:
            marks |= set(re.findall("[CRLEU]", _frame(terminal.lines())[0]))
            before = terminal.lines()[0]
            terminal.press("n")
            terminal.wait(lambda x, old=before: x[0] != old, "another flow")
            time.sleep(SETTLE_S)
        assert marks == set("CRLEU")

        before = _ticks(_frame(terminal.lines())[1])
        terminal.press("+", "+", "+")
        closer = _ticks(_frame(terminal.wait(
            lambda x: _ticks(_frame(x)[1]) != before, "zoomed"
        ))[1])  # fmt: skip
        time.sleep(SETTLE_S)
        closer = _ticks(_frame(terminal.lines())[1])
        assert closer[1] - closer[0] < before[1] - before[0]
        terminal.press("Left", "Left", "Left", "Left")
        terminal.wait(lambda x: "LOOKING BACK" in x[0], "panned")
        time.sleep(SETTLE_S)
        assert _ticks(_frame(terminal.lines())[1])[-1] < closer[-1]
        terminal.press("0")
        terminal.wait(lambda x: "LOOKING BACK" not in x[0], "now again")
        terminal.press("f")
        lines = terminal.wait(lambda x: any("Space compares" in y for y in x), "the list")
        for label in labels:
            assert any(re.search(rf"\b{label}\b", line) for line in lines)
        terminal.press("Escape")  # together with the next key it would be Alt and that key
        terminal.wait(lambda x: any("Quit" in y for y in x), "back")
        terminal.press("q")
        assert terminal.status() == 0


def test_pause_stops_a_replay_and_quitting_restores_the_terminal(tmp_path: Path) -> None:
    argv = ("--replay", str(RECORDING), "--speed", "0.25x", "--span", "5s")
    with _terminal(tmp_path, (80, 24), *argv) as terminal:
        terminal.wait(_complete, "a curve")
        terminal.press("Space")
        terminal.wait(lambda x: "PAUSED" in x[0], "the pause")
        time.sleep(SETTLE_S)
        paused = terminal.lines()
        size = terminal.output.stat().st_size
        time.sleep(1.5)
        assert terminal.lines() == paused
        assert terminal.output.stat().st_size == size
        terminal.press("Space")
        terminal.wait(lambda x: "PAUSED" not in x[0] and x[3:] != paused[3:], "it goes on")
        terminal.press("C-c")
        assert terminal.status() == 0
        lines = terminal.lines()
        assert "".join(lines).strip() == ""
        modes = (tmp_path / "stty").read_text()
        assert " echo " in modes
        assert " icanon " in modes
        written = terminal.output.read_bytes()
        for mode in (1049, 1000, 1003, 1006, 2004, 25):
            on, off = (b"\x1b[?%dh" % mode, b"\x1b[?%dl" % mode)
            last = max((written.rfind(on), b"h"), (written.rfind(off), b"l"))[1]
            assert last == (b"h" if mode == 25 else b"l")


def test_frames_do_not_flicker(tmp_path: Path) -> None:
    """Between frames nothing is erased, and a frame is one synchronised update."""
    argv = ("--replay", str(RECORDING), "--speed", "0.25x", "--span", "5s")
    with _terminal(tmp_path, (80, 24), *argv) as terminal:
        terminal.wait(_complete, "a curve")
        begin = terminal.output.stat().st_size
        began = time.monotonic()
        frames: set[str] = set()
        while time.monotonic() < began + 4:
            frames.add("\n".join(terminal.lines()))
            time.sleep(0.02)
        data = terminal.output.read_bytes()[begin:]
        terminal.press("q")
        terminal.status()
    assert len(frames) > 8
    for screen in frames:
        rows = screen.split("\n")
        # At no time is a part missing: frames, curve, numbers and keys are always there.
        assert "segments" in rows[2]
        assert "Mbit/s" in screen
        assert CURVE.search(screen)
        assert "cwnd" in rows[21]
        assert "Quit" in rows[23]
    for erase in (rb"\x1b\[\d*J", rb"\x1b\[\d*K", rb"\x1bc", rb"\x1b\[\?1049[hl]"):
        assert not re.search(erase, data), erase
    per_s = len(data) / 4
    print(f"{len(frames)} different screens, {per_s / 1000:.1f} kB/s to the terminal")
    assert per_s < 200_000


def test_pictures_of_the_terminal(tmp_path: Path) -> None:
    async def draw(size: tuple[int, int], name: str) -> None:
        with ReplayFeed(Recording.open(RECORDING), float("inf")) as feed:
            app = LiveApp(feed, span_s=8.0)
            with app.pump:
                async with app.run_test(size=size) as pilot:
                    end = time.monotonic() + WAIT_S
                    while not app.model.over and time.monotonic() < end:
                        await pilot.pause(0.1)
                    app.shown = PICTURED
                    await pilot.press("space")
                    await pilot.press("space")
                    await pilot.pause(0.3)
                    (tmp_path / f"{name}.svg").write_text(app.export_screenshot(simplify=True))

    for size, name in (((80, 24), "live-80x24"), ((140, 42), "live-140x42")):
        asyncio.run(draw(size, name))
        (tmp_path / name).mkdir()
        with browser(tmp_path / name, (1100, 720)) as page:
            page.open((tmp_path / f"{name}.svg").as_uri())
            page.screenshot(_picture(f"{name}.png", tmp_path))
        assert _picture(f"{name}.png", tmp_path).stat().st_size > 10_000


PICTURED = "f1"


@contextlib.contextmanager
def _web(*argv: str) -> Iterator[str]:
    with subprocess.Popen(
        [*CCSCOPE, "live", "--web", *argv], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            assert process.wait(WAIT_S) == 0


def _shown(page: Page) -> list[str]:
    made: list[str] = page.run(
        "[...document.querySelectorAll('#flows tr[aria-selected=true]')].map(r => r.dataset.flow)"
    )
    return made


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    argv = ("--replay", str(RECORDING), "--speed", "max", "--span", "10s")
    with _web(*argv) as url, browser(tmp_path, (1200, 1050)) as page:
        page.open(url)
        page.wait("document.querySelectorAll('#flows tbody tr').length > 1")
        page.wait("document.querySelector('#window canvas') !== null")
        labels = list(Recording.open(RECORDING).flows)
        assert page.run("document.querySelectorAll('#flows tbody tr').length") == len(labels)
        page.click(f"#flows tr[data-flow={PICTURED}]")
        page.wait(f"document.querySelector('tr[data-flow={PICTURED}]').ariaSelected === 'true'")
        page.wait("document.querySelectorAll('#events li').length > 0")
        # There is ink of cwnd's colour in the plot.
        ink = """(() => { const c = document.querySelector('#window canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 0; i < d.length; i += 4)
              if (d[i] < 40 && d[i+1] > 90 && d[i+1] < 140 && d[i+2] > 150) n++; return n; })()"""
        page.wait(f"{ink} > 300")
        page.screenshot(_picture("live-web.png", tmp_path))
        assert page.console == []
        assert all(u.startswith((url, "data:")) for u in page.requests), page.requests

        axis = "document.querySelector('#events').childElementCount"
        whole = page.run(axis)
        page.drag("#window .u-over", 0.1, 0.3)
        page.wait("document.querySelector('#status').textContent.includes('looking back')")
        page.wait(f"{axis} <= {whole}")
        page.click("#now")
        page.wait("!document.querySelector('#status').textContent.includes('looking back')")
        page.click("#pause")
        page.wait("document.querySelector('#status').textContent.startsWith('paused')")
        page.click("#pause")
        page.click("#log")
        page.wait("document.querySelector('#window canvas') !== null")
        page.click("#log")
        page.run(
            "document.querySelector('tr[data-flow=f6]').dispatchEvent("
            "new MouseEvent('click', {bubbles: true, ctrlKey: true}))"
        )
        page.wait("document.querySelectorAll('#flows tr[aria-selected=true]').length === 2")
        assert set(_shown(page)) == {"f6", PICTURED}
        page.mouse("mouseMoved", *[v + 60 for v in page.box("#window .u-over")[:2]])
        page.wait("!document.querySelector('#tip').hidden")
        assert page.console == []
        page.screenshot(_picture("live-web-two.png", tmp_path))


def test_the_page_while_it_goes_on(tmp_path: Path) -> None:
    argv = ("--replay", str(RECORDING), "--speed", "0.1x", "--span", "5s")
    with _web(*argv) as url, browser(tmp_path) as page:
        page.open(url)
        now = "parseFloat(document.querySelector('#status').textContent)"
        page.wait(f"{now} > 0.2")
        first = page.run(now)
        page.wait(f"{now} > {first + 0.5}")
        page.click("#pause")
        held = page.run("document.querySelector('#status').textContent")
        time.sleep(1)
        assert page.run("document.querySelector('#status').textContent") == held
        page.click("#pause")
        page.wait(f"{now} > {first + 0.6}")
        assert page.console == []
