"""airflow over the loopback device."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builttools import Tools

Wait = Callable[..., None]
ADDRESS = {4: "127.0.0.1", 6: "::1"}
COLUMNS = [
    *("t_ns", "cwnd_segs", "ssthresh_segs", "srtt_us", "min_rtt_us", "unacked_segs"),
    *("sacked_segs", "lost_segs", "retrans_total", "ca_state", "delivery_rate_Bps"),
    *("bytes_acked", "rto_us", "mss_bytes"),
]


def algorithms() -> list[str]:
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def transfer(
    tools: Tools, wait_bound: Wait, port: int, *send: object, recv: tuple[object, ...] = ()
) -> tuple[Any, Any]:
    """One receiver, one sender on 127.0.0.1; both must end well. Returns their JSON."""
    server = tools.start("airflow", "recv", "--port", port, "--json", "r.json", *recv)
    wait_bound(server, port)
    args = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic", "--json", "s.json"]
    done = tools.run("airflow", "send", *args, *send)
    assert done.returncode == 0, done.stderr
    assert server.wait(10) == 0, server.communicate()
    return tools.json("r.json"), tools.json("s.json")


def test_verified_transfer(tools: Tools, wait_bound: Wait, port: int, family: int) -> None:
    size = 5_000_003  # no multiple of a word or a chunk
    server = tools.start(
        "airflow", "recv", "--port", port, "--family", family, "--verify", 9, "--json", "r.json"
    )
    wait_bound(server, port)
    to = ["--to", ADDRESS[family], "--port", port]
    what = ["--cc", "cubic", "--bytes", size, "--verify", 9, "--sample-ms", 1]
    done = tools.run("airflow", "send", *to, *what, "--json", "s.json")
    assert done.returncode == 0, done.stderr
    assert server.wait(10) == 0
    got, sent = tools.json("r.json"), tools.json("s.json")
    assert got["bytes"] == sent["bytes"] == size
    assert got["verified"] is True and got["mismatch_at"] is None
    assert got["connections"] == 1 and got["resets"] == 0
    assert sum(count for _, count in got["bins"]) == size
    assert all(t % 100_000_000 == 0 for t, _ in got["bins"])
    assert got["first_ns"] <= got["last_ns"] <= sent["end_ns"]
    assert sent["error"] is None and sent["cc"] == sent["cc_end"] == "cubic"
    assert list(sent["samples"]) == list(sent["final"]) == COLUMNS
    rows = {len(column) for column in sent["samples"].values()}
    assert len(rows) == 1 and rows.pop() > 0
    # Everything was acknowledged; the FIN counts as one more.
    assert sent["final"]["bytes_acked"] in (size, size + 1, size + 2)
    assert sent["final"]["unacked_segs"] == 0


@pytest.mark.parametrize("seeds", [(1, 2), (5, 6)])
def test_wrong_data_are_found(
    tools: Tools, wait_bound: Wait, port: int, seeds: tuple[int, int]
) -> None:
    server = tools.start(
        "airflow", "recv", "--port", port, "--verify", seeds[0], "--json", "r.json"
    )
    wait_bound(server, port)
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic"]
    tools.run("airflow", "send", *to, "--bytes", 100_000, "--verify", seeds[1])
    assert server.wait(10) == 1
    got = tools.json("r.json")
    assert got["verified"] is False and got["mismatch_at"] == 0
    assert got["bytes"] == 100_000
    assert "--verify" in got["error"]


def test_a_single_wrong_byte_is_found(tools: Tools, wait_bound: Wait, port: int) -> None:
    """The stream as documented, made here, with one bit flipped."""
    import socket

    mask = (1 << 64) - 1

    def word(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    data = bytearray(b"".join(word(3 + i).to_bytes(8, "little") for i in range(20_000)))
    data[123_457] ^= 0x10
    server = tools.start("airflow", "recv", "--port", port, "--verify", 3, "--json", "r.json")
    wait_bound(server, port)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(data)
    assert server.wait(10) == 1
    assert tools.json("r.json")["mismatch_at"] == 123_457


def test_timed_flow_ends_by_reset(tools: Tools, wait_bound: Wait, port: int) -> None:
    got, sent = transfer(tools, wait_bound, port, "--seconds", 0.3)
    assert got["resets"] == 1 and got["bytes"] > 0
    assert 0.3e9 <= sent["end_ns"] - sent["start_ns"] < 1e9
    assert 3 <= len(sent["samples"]["t_ns"]) <= 4


def test_timed_flow_can_end_by_fin(tools: Tools, wait_bound: Wait, port: int) -> None:
    got, sent = transfer(tools, wait_bound, port, "--seconds", 0.3, "--close", "fin")
    assert got["resets"] == 0 and got["bytes"] == sent["bytes"] > 0


def test_switch_changes_the_algorithm(tools: Tools, wait_bound: Wait, port: int) -> None:
    if "reno" not in algorithms():
        pytest.skip("no reno here")
    switches = ["--switch", "50:reno", "--switch", "100:cubic", "--switch", "150:reno"]
    _, sent = transfer(tools, wait_bound, port, "--seconds", 0.3, *switches)
    assert sent["cc"] == "cubic" and sent["cc_end"] == "reno"


def test_pause_stops_the_application(tools: Tools, wait_bound: Wait, port: int) -> None:
    got, _ = transfer(
        tools, wait_bound, port, "--seconds", 0.9, "--pause", "200:500", recv=("--bin-ms", 20)
    )
    times = [t for t, _ in got["bins"]]
    gap = max(b - a for a, b in pairwise(times))
    assert 420e6 <= gap <= 700e6


def test_app_rate_limits_the_application(tools: Tools, wait_bound: Wait, port: int) -> None:
    got, sent = transfer(
        tools, wait_bound, port, "--seconds", 1, "--app-rate", 8_000_000, "--close", "fin"
    )
    assert got["bytes"] == sent["bytes"]
    assert 900_000 <= got["bytes"] <= 1_000_000


def test_many_connections(tools: Tools, wait_bound: Wait, port: int) -> None:
    server = tools.start("airflow", "recv", "--port", port, "--count", 100, "--json", "r.json")
    wait_bound(server, port)
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic", "--json", "c.json"]
    done = tools.run("airflow", "churn", *to, "--count", 60, "--seed", 4, "--parallel", 8)
    assert done.returncode == 0, done.stderr
    first = tools.json("c.json")
    assert first["opened"] == 60 and first["failed"] == 0
    assert first["closed"] + first["reset"] == 60 and first["reset"] > 0
    tools.run("airflow", "churn", *to, "--count", 40, "--seed", 4)
    second = tools.json("c.json")
    assert second["closed"] + second["reset"] == 40
    assert server.wait(10) == 0
    got = tools.json("r.json")
    assert got["connections"] == 100 and got["resets"] == first["reset"] + second["reset"]


@pytest.mark.parametrize("dist", ["cbr", "poisson"])
def test_udp(tools: Tools, wait_bound: Wait, port: int, family: int, dist: str) -> None:
    server = tools.start(
        "airflow", "udp-recv", "--port", port, "--family", family, "--keep", 5, "--json", "r.json"
    )
    wait_bound(server, port, udp=True)
    to = ["--to", ADDRESS[family], "--port", port, "--size", 1000, "--json", "s.json"]
    rate = 8 * (1000 + 8 + 14 + (20 if family == 4 else 40)) * 500  # 500 datagrams a second
    how = ["--rate", rate, "--dist", dist, "--seed", 3, "--seconds", 0.4]
    done = tools.run("airflow", "udp-send", *to, *how)
    assert done.returncode == 0, done.stderr
    time.sleep(0.1)
    server.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    got, sent = tools.json("r.json"), tools.json("s.json")
    assert got["datagrams"] == sent["datagrams"] and got["bytes"] == sent["bytes"]
    assert got["lost"] == got["reordered"] == 0
    assert len(got["arrivals_ns"]) == 5 and got["arrivals_ns"][0] == got["first_ns"]
    assert sent["datagrams"] == 200 if dist == "cbr" else 150 <= sent["datagrams"] <= 250


def test_udp_loss_and_reordering_are_counted(tools: Tools, wait_bound: Wait, port: int) -> None:
    import socket

    server = tools.start("airflow", "udp-recv", "--port", port, "--json", "r.json")
    wait_bound(server, port, udp=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        for number in (0, 1, 4, 3, 7):
            peer.sendto(number.to_bytes(8, "little") + b"x" * 92, ("127.0.0.1", port))
    time.sleep(0.1)
    server.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    got = tools.json("r.json")
    assert (got["datagrams"], got["bytes"]) == (5, 500)
    assert (got["lost"], got["reordered"]) == (3, 1)


def test_burst(tools: Tools, wait_bound: Wait, port: int) -> None:
    server = tools.start("airflow", "udp-recv", "--port", port, "--json", "r.json")
    wait_bound(server, port, udp=True)
    to = ["--to", "127.0.0.1", "--port", port, "--size", 100, "--count", 50]
    assert tools.run("airflow", "burst", *to, "--json", "s.json").returncode == 0
    time.sleep(0.1)
    server.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert tools.json("s.json")["datagrams"] == tools.json("r.json")["datagrams"] == 50


def test_echo_and_ping(tools: Tools, wait_bound: Wait, port: int, family: int) -> None:
    server = tools.start("airflow", "echo", "--port", port, "--family", family, "--json", "e.json")
    wait_bound(server, port, udp=True)
    to = ["--to", ADDRESS[family], "--port", port, "--count", 10, "--interval-ms", 5]
    assert tools.run("airflow", "ping", *to, "--json", "p.json").returncode == 0
    server.send_signal(signal.SIGTERM)
    assert server.wait(10) == 0
    got = tools.json("p.json")
    assert len(got["rtts_ns"]) == 10 and got["lost"] == 0
    assert all(0 < rtt < 1e9 for rtt in got["rtts_ns"])
    assert tools.json("e.json")["datagrams"] == 10


def test_ping_counts_what_is_lost(tools: Tools, port: int) -> None:
    to = ["--to", "127.0.0.1", "--port", port, "--count", 3, "--interval-ms", 5]
    assert tools.run("airflow", "ping", *to, "--wait-ms", 50, "--json", "p.json").returncode == 0
    assert tools.json("p.json") == {
        "mode": "ping", "rtts_ns": [], "lost": 3, "sent": 3, "error": None,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["recv", "udp-recv", "echo"])
def test_server_finishes_on_sigterm(tools: Tools, wait_bound: Wait, port: int, mode: str) -> None:
    server = tools.start("airflow", mode, "--port", port, "--json", "r.json")
    wait_bound(server, port, udp=mode != "recv")
    server.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0
    assert tools.json("r.json")["bytes"] == 0


def test_receiver_finishes_on_sigterm_in_mid_flow(
    tools: Tools, wait_bound: Wait, port: int
) -> None:
    server = tools.start("airflow", "recv", "--port", port, "--json", "r.json")
    wait_bound(server, port)
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic", "--json", "s.json"]
    sender = tools.start("airflow", "send", *to, "--seconds", 20, "--app-rate", 1e6)
    time.sleep(0.3)
    server.send_signal(signal.SIGTERM)
    assert server.wait(5) == 0
    assert tools.json("r.json")["bytes"] > 0
    assert sender.wait(5) == 1  # its peer is gone, and it says so
    assert tools.json("s.json")["error"]


def test_sender_writes_json_on_sigterm(tools: Tools, wait_bound: Wait, port: int) -> None:
    server = tools.start("airflow", "recv", "--port", port, "--json", "r.json")
    wait_bound(server, port)
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic", "--json", "s.json"]
    sender = tools.start("airflow", "send", *to, "--seconds", 20)
    time.sleep(0.3)
    sender.send_signal(signal.SIGTERM)
    assert sender.wait(5) == 1
    sent = tools.json("s.json")
    assert sent["error"] == "terminated" and sent["bytes"] > 0 and sent["final"]["mss_bytes"] > 0


def test_refused_connection(tools: Tools, port: int) -> None:
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "cubic", "--json", "s.json"]
    done = tools.run("airflow", "send", *to, "--bytes", 1)
    assert done.returncode == 1 and "Connection refused" in done.stderr
    assert "Connection refused" in tools.json("s.json")["error"]


def test_unknown_algorithm(tools: Tools, port: int) -> None:
    to = ["--to", "127.0.0.1", "--port", port, "--cc", "nosuchcc", "--json", "s.json"]
    done = tools.run("airflow", "send", *to, "--bytes", 1)
    assert done.returncode == 1 and "nosuchcc" in done.stderr
    assert "nosuchcc" in tools.json("s.json")["error"]


GOOD_SEND = ["send", "--to", "127.0.0.1", "--port", "9", "--cc", "cubic", "--seconds", "1"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "usage"),
        (["fly"], "fly"),
        (["recv"], "--port"),
        (["recv", "--port", "0"], "--port"),
        (["recv", "--port", "99999"], "--port"),
        (["recv", "--port", "7", "--to", "127.0.0.1"], "--to"),
        (["recv", "--port", "7", "--family", "5"], "--family"),
        (["recv", "--port", "7", "--verify", "x"], "--verify"),
        (["recv", "--port", "7", "left-over"], "left-over"),
        (["send", "--to", "127.0.0.1", "--port", "9", "--cc", "cubic"], "--seconds"),
        (["send", "--to", "localhost", "--port", "9"], "--to"),
        ([*GOOD_SEND, "--cc", "a-name-that-is-too-long"], "--cc"),
        ([*GOOD_SEND, "--switch", "reno"], "--switch"),
        ([*GOOD_SEND, "--switch", "9:reno", "--switch", "8:cubic"], "--switch"),
        ([*GOOD_SEND, "--pause", "10:0"], "--pause"),
        ([*GOOD_SEND, "--pause", "10:10", "--pause", "15:1"], "--pause"),
        ([*GOOD_SEND, "--app-rate", "nan"], "--app-rate"),
        ([*GOOD_SEND, "--close", "maybe"], "--close"),
        ([*GOOD_SEND, "--bytes", "-1"], "--bytes"),
        ([*GOOD_SEND, "--tx-delay-ms", "0"], "--tx-delay-ms"),
        (["recv", "--port", "7", "--tx-delay-ms", "9"], "--tx-delay-ms"),
        ([*GOOD_SEND, "--json", "/no/such/folder/x.json"], "--json"),
        (["burst", "--to", "::1", "--port", "9", "--size", "4", "--count", "1"], "--size"),
    ],
)
def test_bad_arguments(tools: Tools, args: list[str], named: str) -> None:
    done = tools.run("airflow", *args)
    assert done.returncode == 2
    assert named in done.stderr
