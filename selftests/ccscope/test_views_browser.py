"""The page of a recording with a million packets, in a real browser, used with the mouse."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from ccscope.cli import main
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import madeflows
from browser import Page, browser

pytestmark = pytest.mark.browser
PACKETS = 1_000_000
PICTURES = Path(__file__).parents[2] / "docs/pictures"
MOST_BYTES = 150_000
SETTLED = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true), 0)))"
AXES = """ccscope.board.plots.map(({ plot, box }) =>
  [box.id, plot.scales.x.min, plot.scales.x.max, plot.scales.y.min, plot.scales.y.max])"""
PANELS = ("p-cwnd", "p-windows", "p-throughput", "p-rtt", "p-states", "p-sequence")
# How many pixels of a panel's plot are neither paper nor grid.
INK = """((id) => {
  const { plot } = ccscope.board.plots.find((p) => p.box.id === id), { bbox } = plot;
  const copy = new OffscreenCanvas(bbox.width, bbox.height).getContext("2d");
  copy.drawImage(plot.ctx.canvas, -bbox.left, -bbox.top);
  const data = copy.getImageData(0, 0, bbox.width, bbox.height).data;
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] > 128 && data[i] + data[i + 1] + data[i + 2] < 600) count++;
  }
  return count;
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("views")
    flow = madeflows.made_flow("f1", PACKETS // 2 + 500)
    assert len(flow.tables["packets"]["t_s"]) >= PACKETS
    madeflows.write_recording(root / "million", {"f1": flow})
    two = {f"f{i}": madeflows.made_flow(f"f{i}", 20_000 // i, 8e6 / i, i) for i in (1, 2)}
    madeflows.write_recording(root / "two", two)
    made = {}
    for name in ("million", "two"):
        made[name] = root / f"{name}.html"
        assert main(["report", str(root / name), "-o", str(made[name])]) == 0
    return made


@pytest.fixture
def page(tmp_path: Path) -> object:
    with browser(tmp_path) as opened:
        yield opened


def _open(page: Page, file: Path) -> float:
    """Open a page; seconds from the start of the navigation to its curves."""
    page.open(file.as_uri())
    page.wait("globalThis.ccscope")
    return float(page.run("ccscope.ready")) / 1e3


def _axes(page: Page) -> dict[str, list[float]]:
    page.run(SETTLED)
    return {row[0]: row[1:] for row in page.run(AXES)}


def _picture(page: Page, name: str, height: int) -> None:
    """A screenshot for the documentation, with few colours so that it stays small."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.run("scrollTo(0, 0)")
    page.screenshot(path, height)
    few = Image.open(path).convert("RGB").quantize(160, method=Image.Quantize.FASTOCTREE, dither=0)
    few.save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES


def test_a_million_packets(page: Page, pages: dict[str, Path]) -> None:
    start = page.cpu_s()
    ready = _open(page, pages["million"])
    opened = page.cpu_s() - start
    whole = _axes(page)
    assert tuple(whole) == PANELS
    began, start = time.monotonic(), page.cpu_s()
    page.drag("#p-sequence .u-over", 0.40, 0.45)
    zoomed = _axes(page)
    response, worked = time.monotonic() - began, page.cpu_s() - start
    size = pages["million"].stat().st_size / 1e6
    print(
        f"\n1,000,000 packets in a page of {size:.1f} MB: curves {ready:.2f} s after the start of "
        f"the navigation ({opened:.2f} s of CPU), a zoom by the mouse {response:.2f} s "
        f"({worked:.2f} s of CPU); wall times depend on what else the machine does"
    )
    assert opened < 20
    assert worked < 5

    # Every panel has the same new axis of time, and its own y axis follows where it should.
    length = whole["p-cwnd"][1]
    low, high = zoomed["p-sequence"][:2]
    assert (low, high) == pytest.approx((0.40 * length, 0.45 * length), rel=0.02)
    assert {tuple(axes[:2]) for axes in zoomed.values()} == {(low, high)}
    assert zoomed["p-sequence"][2] > whole["p-sequence"][2]
    assert zoomed["p-sequence"][3] < whole["p-sequence"][3]

    # Again and again, until single segments can be seen: each is drawn.
    for _ in range(3):
        page.drag("#p-sequence .u-over", 0.45, 0.55)
    near = _axes(page)["p-sequence"]
    assert near[1] - near[0] < 0.004
    assert page.run(f"{INK}('p-sequence')") > 200

    # A double click gives the whole recording again, Backspace the last zoom.
    page.click("#p-rtt .u-over", 2)
    assert _axes(page) == whole
    page.click("#back")
    assert _axes(page)["p-cwnd"][:2] == near[:2]
    page.click("#whole")

    # The legend hides and shows.
    before = page.run(f"{INK}('p-rtt')")
    page.click("#p-rtt .u-legend tr:nth-child(2) th")
    page.run(SETTLED)
    assert page.run(f"{INK}('p-rtt')") < before
    page.click("#p-rtt .u-legend tr:nth-child(2) th")
    page.run(SETTLED)
    assert page.run(f"{INK}('p-rtt')") == before

    assert page.console == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def test_a_loss_close_up(page: Page, pages: dict[str, Path]) -> None:
    """What the documentation shows; and the events in view are those of the zoom."""
    _open(page, pages["million"])
    page.run("ccscope.board.setRange(17.605, 17.70)")
    page.wait("document.querySelectorAll('#events tbody tr').length === 1")
    assert "sack" in page.run("document.querySelector('#events tbody').textContent")
    left, top, width, height = page.box("#p-cwnd .u-over")
    page.mouse("mouseMoved", left + width / 2, top + height / 2)
    page.run(SETTLED)
    shown = page.run("[...document.querySelectorAll('.values')].map((v) => v.textContent)")
    assert all(text.startswith("17.65") for text in shown), shown
    assert "cwnd " in shown[0]
    assert "ACK " in shown[-1]
    page.mouse("mouseMoved", 5, 5)
    _picture(
        page,
        "ccscope-report-zoom",
        int(
            page.run(
                "document.querySelector('#p-sequence').getBoundingClientRect().bottom + scrollY"
            )
        ),
    )
    assert page.console == []


def test_several_flows(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["two"])
    legend = "document.querySelectorAll('#p-cwnd .u-series').length"
    both = page.run(legend)
    title = "document.querySelector('#p-sequence h3').textContent"
    assert "f1 cubic" in page.run(title)
    page.run(
        "(() => { const s = document.getElementById('focus'); s.value = 'f2';"
        "s.dispatchEvent(new Event('change')); })()"
    )
    page.wait(f"document.querySelector('#p-sequence') && {title}.includes('f2 reno')")
    _picture(
        page,
        "ccscope-report",
        int(
            page.run(
                "document.querySelector('#p-sequence').getBoundingClientRect().bottom + scrollY"
            )
        ),
    )
    page.click("#flows input")
    page.wait(f"document.querySelector('#p-sequence') && {legend} < {both}")
    assert page.console == []
