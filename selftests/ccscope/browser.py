"""A headless Chromium, driven as a user does, by its DevTools protocol and no other driver."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0"),
)
_START_S = 60.0
_ANSWER_S = 120.0


@dataclass
class Page:
    """A tab.  ``console`` has every message of the page that is a warning, an error or worse."""

    socket: ClientConnection
    session: str
    pid: int
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    _last: int = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._last += 1
        number = self._last
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        end = time.monotonic() + _ANSWER_S
        while True:
            answer = json.loads(self.socket.recv(timeout=max(0.1, end - time.monotonic())))
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        method = event.get("method")
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description", str(details)))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.console.append(" ".join(str(a.get("value")) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        else:
            self.events.append(event)

    def cpu_s(self) -> float:
        """Processor seconds that the browser has used so far, all its processes together."""
        root = psutil.Process(self.pid)
        times = (p.cpu_times() for p in (root, *root.children(recursive=True)))
        return sum(t.user + t.system for t in times)

    def run(self, script: str) -> Any:
        """The value of an expression (promises are awaited)."""
        made = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def open(self, url: str) -> None:
        """Go to a page and return when its document has been read."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition}: not within {seconds} s; {self.console}"
            time.sleep(0.01)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width, height of an element in the window, after scrolling to it."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.left, r.top, r.width, r.height]; })()"
        )
        return tuple(found)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event: mouseMoved, mousePressed, mouseReleased."""
        button = "none" if kind == "mouseMoved" and "buttons" not in more else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, **more)

    def drag(self, selector: str, start: float, stop: float) -> None:
        """Drag over an element from one part of its width (0 to 1) to another."""
        left, top, width, height = self.box(selector)
        y = top + height / 2
        self.mouse("mouseMoved", left + start * width, y)
        self.mouse("mousePressed", left + start * width, y, clickCount=1, buttons=1)
        for i in range(1, 6):
            x = left + (start + (stop - start) * i / 5) * width
            self.mouse("mouseMoved", x, y, buttons=1)
        self.mouse("mouseReleased", left + stop * width, y, clickCount=1)

    def click(self, selector: str, count: int = 1) -> None:
        """Click into the middle of an element; ``count`` 2 is a double click."""
        left, top, width, height = self.box(selector)
        x, y = left + width / 2, top + height / 2
        self.mouse("mouseMoved", x, y)
        for i in range(1, count + 1):
            self.mouse("mousePressed", x, y, clickCount=i, buttons=1)
            self.mouse("mouseReleased", x, y, clickCount=i)

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """A picture (PNG) of the window, or of the page's first ``height`` px."""
        more: dict[str, Any] = {}
        if height:
            width = self.run("innerWidth")
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            more = {"clip": clip, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **more)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(folder: Path, size: tuple[int, int] = (1280, 900)) -> Iterator[Page]:
    """A page in a fresh headless Chromium, which is gone afterwards.

    Args:
        folder: for its profile.
        size: of the window, px.
    """
    assert PROGRAM, "Chromium is not installed; `make check-views` installs it"
    profile = folder / "profile"
    command = [PROGRAM, *_FLAGS, f"--user-data-dir={profile}"]
    command += [f"--window-size={size[0]},{size[1]}", "about:blank"]
    with open(folder / "chromium.log", "wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )
    try:
        address = _address(profile / "DevToolsActivePort", process)
        with connect(address, max_size=None, open_timeout=_START_S) as socket:
            page = Page(socket, "", process.pid)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
            page.call(
                "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
                deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
            yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(file: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + _START_S
    while True:
        lines = file.read_text().split() if file.is_file() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        assert process.poll() is None, "Chromium ended at its start"
        assert time.monotonic() < end, "Chromium did not start"
        time.sleep(0.05)
