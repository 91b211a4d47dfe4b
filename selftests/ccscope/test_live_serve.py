"""``live --web`` and ``serve --prometheus``: what is served, and to whom not."""

from __future__ import annotations

import gzip
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ccscope.cli import main
from ccscope.imports import import_file
from ccscope.live import metrics, web
from ccscope.live.feeds import ReplayFeed
from ccscope.live.httpd import Server
from ccscope.live.model import Model
from ccscope.live.pump import Pump
from ccscope.recording import Recording
from prometheus_client.parser import text_string_to_metric_families

RING = Path(__file__).with_name("ring")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    raw = tmp_path_factory.mktemp("raw")
    shutil.copytree(RING / "trace.formats", raw / "trace.formats")
    shutil.copy(RING / "trace.stats", raw)
    (raw / "trace.raw").write_bytes(gzip.decompress((RING / "trace.raw.gz").read_bytes()))
    import_file(raw, raw / "rec", None)
    return Recording.open(raw / "rec")


@pytest.fixture
def server(recording: Recording) -> Iterator[Server]:
    with (
        ReplayFeed(recording, float("inf")) as feed,
        Pump(feed, Model()) as pump,
        web.serve(feed, pump, port=0, span_s=5.0) as server,
    ):
        while not pump.model.over:
            time.sleep(0.02)
        yield server


def _get(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest("GET", path, skip_host="Host" in sent)
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    made = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return made


def test_the_page_is_whole_and_may_load_nothing(server: Server) -> None:
    status, headers, body = _get(server, f"/{server.token}/")
    assert status == 200
    rules = headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    page = body.decode()
    assert "uPlot (v1" in page
    for word in ("src=", "@import", "https://fonts", "/*STYLE*/", "/*SCRIPT*/"):
        assert word not in page
    assert headers["Cache-Control"] == "no-store"


def test_only_this_hosts_own_browser_with_the_token_gets_an_answer(server: Server) -> None:
    good = f"/{server.token}/"
    own = f"127.0.0.1:{server.port}"
    assert server.url == f"http://{own}{good}"
    assert len(server.token) >= 20
    for path, headers, status in [
        (good, {}, 200),
        (good, {"Host": f"localhost:{server.port}"}, 200),
        (good, {"Origin": f"http://{own}"}, 200),
        ("/", {}, 404),
        (f"/{server.token}", {}, 404),
        (f"/{server.token[:-1]}x/", {}, 404),
        (f"{good}nothing", {}, 404),
        # A name of the attacker's that points to 127.0.0.1.
        (good, {"Host": f"evil.example:{server.port}"}, 403),
        (good, {"Host": "127.0.0.1"}, 403),
        (good, {"Origin": "http://evil.example"}, 403),
        (good, {"Origin": "null"}, 403),
        (good, {"Sec_Fetch_Site": "cross-site"}, 403),
        (f"{good}events", {"Host": "evil.example"}, 403),
    ]:
        got, _, body = _get(server, path, **headers)
        assert got == status, (path, headers)
        assert status == 200 or len(body) < 100
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{server.port:04X}")
    ]
    assert listening == [f"0100007F:{server.port:04X}"]


def _events(server: Server, query: str, count: int) -> list[tuple[str, Any]]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        head = (
            f"GET /{server.token}/events{query} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        )
        client.sendall(head.encode())
        text = b""
        while text.count(b"\n\n") < count:
            text += client.recv(1 << 16)
    blocks = text.partition(b"\r\n\r\n")[2].split(b"\n\n")[:count]
    pairs = [block.decode().split("\ndata: ", 1) for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data)) for name, data in pairs]


def test_events_bring_the_whole_flow(server: Server, recording: Recording) -> None:
    (_, hello), (name, frame) = _events(server, "", 2)
    assert hello["source"].startswith("replay of")
    assert name == "frame"
    assert {f["label"] for f in frame["flows"]} == set(recording.flows)
    (label,) = frame["shown"]
    shown = frame["shown"][label]
    acks = recording.flow("acks", label)
    assert len(shown["points"]["t"]) == len(acks["t_s"])
    assert shown["points"]["cwnd"] == acks["cwnd_segs"].tolist()
    assert {kind for _, kind, _ in shown["marks"]} >= {"loss", "recovery"}
    assert len(shown["again"]) == len(recording.flow("retransmits", label)["t_s"])
    other = next(f["label"] for f in frame["flows"] if f["label"] != label)
    (_, _), (_, frame) = _events(server, f"?flow={other}&flow={label}", 2)
    assert list(frame["shown"]) == [other, label]


# ---- Prometheus ----


@pytest.fixture
def scraped(recording: Recording) -> dict[str, Any]:
    with ReplayFeed(recording, float("inf")) as feed:
        tally = metrics.Tally(feed, per_flow=1)
        tally.add(feed.take())
    text = metrics.Exposition(tally, threading.Lock()).answer("metrics", {})
    assert text is not None
    assert isinstance(text.body, bytes)
    assert text.kind.startswith("text/plain; version=")
    return {f.name: f for f in text_string_to_metric_families(text.body.decode())}


def test_metrics_count_what_the_recording_holds(
    scraped: dict[str, Any], recording: Recording
) -> None:
    acks, states = recording.table("acks"), recording.table("states")
    buckets = {
        s.labels["le"]: s.value
        for s in scraped["ccscope_srtt_seconds"].samples
        if s.name.endswith("_bucket")
    }
    srtt = acks["srtt_us"][acks["srtt_us"] > 0] / 1e6
    assert buckets["+Inf"] == len(srtt)
    assert buckets["0.02"] == (srtt <= 0.02).sum()
    counts = list(buckets.values())
    assert counts == sorted(counts)
    causes = {s.labels["cause"]: s.value for s in scraped["ccscope_ca_events"].samples}
    assert causes == Counter(states["cause"].tolist())
    again = sum(s.value for s in scraped["ccscope_retransmitted_segments"].samples)
    assert again == len(recording.table("retransmits")["t_s"])
    seconds = {s.labels["state"]: s.value for s in scraped["ccscope_ca_state_seconds"].samples}
    assert {"Open", "Recovery", "Loss"} <= set(seconds)
    first = {f: acks["t_s"][acks["flow"] == f].min() for f in set(acks["flow"].tolist())}
    whole = sum(recording.duration_s - t for t in first.values())
    assert sum(seconds.values()) == pytest.approx(whole, rel=0.01)
    (loss,) = np.flatnonzero((states["state"] == "Loss") & (states["left"] != "Loss"))[:1]
    left = np.flatnonzero((states["left"] == "Loss") & (states["state"] != "Loss"))
    if len(left) == 1:
        span = states["t_s"][left[0]] - states["t_s"][loss]
        assert seconds["Loss"] == pytest.approx(span)


def test_labels_are_bounded(scraped: dict[str, Any]) -> None:
    names = {label for f in scraped.values() for s in f.samples for label in s.labels}
    assert names <= {"cc", "le", "cause", "kind", "state", "source", "flow", "src", "dst"}
    flows = {s.labels["flow"] for f in scraped.values() for s in f.samples if "flow" in s.labels}
    assert len(flows) == 1


def test_other_hosts_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, text in [
        (["--listen", "0.0.0.0:0"], "--allow-remote"),
        (["--listen", "[::]:0"], "--allow-remote"),
        (["--listen", "localhost:x"], "an address and a port"),
        (["--per-flow", "100000"], "0 to 500"),
    ]:
        assert main(["serve", "--prometheus", *argv]) == 2
        assert text in capsys.readouterr().err


def test_serving_this_host() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as other,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "ccscope", "serve", "--prometheus", "--source", "sockdiag"),
                *("--per", "50ms", "--listen", "127.0.0.1:0"),
                *("--port", str(listener.getsockname()[1])),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/metrics")
        port = int(url.split(":")[2].partition("/")[0])
        end = time.monotonic() + 20
        text = ""
        while 'ccscope_connections{cc="' not in text and time.monotonic() < end:
            client.send(bytes(1000))
            other.recv(1000)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    found = {f.name: f for f in text_string_to_metric_families(text)}
    (connections,) = found["ccscope_connections"].samples
    assert connections.value == 2
    assert found["ccscope_source"].samples[0].labels == {"source": "sockdiag"}
