"""Devices, addresses, routes and stages."""

from __future__ import annotations

import pytest
from airlab.model import AirlabError
from airlab.scenario import parse_scenario
from airlab.topology import (
    build_topology,
    delay_words,
    kernel_modules,
    rate_commands,
    setup_script,
)


def _raw(**air):
    return {
        "schema": 1, "name": "t", "title": "t", "purpose": "?", "duration": "10s", "cc": ["reno"],
        "nodes": {"a": {}, "r": {"role": "router"}, "b": {}},
        "links": {
            "lan": {"between": ["a", "r"]},
            "air": {"between": ["r", "b"], "rate": "5Mbit", "delay": "25ms", **air},
        },
        "flows": [{"from": "a", "to": "b"}],
    }  # fmt: skip


def _topology(raw=None, **air):
    return build_topology(parse_scenario(raw or _raw(**air), "t"))


def test_addresses_paths_and_rtt():
    t = _topology()
    assert t.address("b", "a") == "10.2.0.2"
    assert t.path("a", "b") == [("lan", 0), ("air", 0)]
    assert t.path("b", "a") == [("air", 1), ("lan", 1)]
    assert t.rtt_us("a", "b") == 50_000
    assert t.namespaces == ("a", "r", "b", "waira", "wairb")
    stage = t.stages["air", 0]
    assert (stage.rate_ns, stage.rate_dev) == ("waira", "wire")
    assert (stage.delay_ns, stage.delay_dev) == ("wairb", "host")
    assert stage.channel is None


def test_ipv6_addresses():
    t = _topology({**_raw(), "ip": 6})
    assert t.address("b", "a") == "fd00:2::2"
    text = setup_script(t, {})
    assert "route add fd00:2::/64 via fd00:1::2" in text
    assert "addr add fd00:2::2/64 nodad dev air" in text
    assert "disable_ipv6" not in text


def test_reverse_overrides_only_what_it_says():
    t = _topology(ber=1e-6, reverse={"rate": "1Mbit", "loss": "1%"})
    ab, ba = t.stages["air", 0], t.stages["air", 1]
    assert (ab.rate_bps, ab.ber, ab.loss) == (5_000_000, 1e-6, 0)
    assert (ba.rate_bps, ba.ber, ba.loss, ba.delay_us) == (1_000_000, 0, 0.01, 25_000)


def test_direction_limits_impairments():
    t = _topology(ber=1e-6, direction="forward")
    assert t.stages["air", 0].channel == "air-ab"
    assert t.stages["air", 1].channel is None


@pytest.mark.parametrize(
    ("air", "kind", "words"),
    [
        ({"buffer": "30pkt"}, "netem", "netem rate 5000000bit limit 30"),
        ({"buffer": "1BDP"}, "netem", "netem rate 5000000bit limit 21"),
        ({"buffer": "64kB"}, "tbf", "tbf rate 5000000bit burst 1514 limit 64000"),
        ({"qdisc": "codel", "buffer": "50pkt"}, "htb", "codel limit 50 noecn"),
        ({"qdisc": "fq_codel", "ecn": True}, "htb", "fq_codel limit 100 flows 1024"),
        ({"qdisc": "red"}, "htb", "red limit 151400 min 24224 max 75700 avpkt 1514"),
        ({"qdisc": "fq"}, "htb", "fq limit 100 flow_limit 100"),
    ],
)
def test_rate_stages(air, kind, words):
    stage = _topology(**air).stages["air", 0]
    assert stage.kind == kind
    assert words in "\n".join(rate_commands(stage))


def test_holding_link_has_its_buffer_before_the_serialiser():
    raw = _raw(buffer="30pkt")
    raw["events"] = [{"at": "1s", "link": "air", "outage": "1s", "mode": "hold"}]
    lines = rate_commands(_topology(raw).stages["air", 0])
    assert lines[0].endswith("tbf rate 5000000bit burst 1514 limit 45420")
    assert "parent 10:1 handle 1000: plug limit 45420" in lines[1]
    assert lines[2].endswith("plug release_indefinite")


def test_handles_are_unique():
    raw = _raw()
    raw["links"]["lan"]["delay"] = "1ms"
    raw["links"]["lan"]["rate"] = "50Mbit"
    stages = _topology(raw).stages.values()
    handles = [h for s in stages for h in (s.rate_handle, s.leaf_handle, s.delay_handle)]
    assert len(set(handles)) == 12


def test_netem_extras_are_complete_parameter_sets():
    stage = _topology(duplicate="1%", corrupt="2%", reorder="3%").stages["air", 0]
    off = "netem delay 25000us limit 1000000 duplicate 0% corrupt 0%"
    assert delay_words(stage) == off
    on = "netem delay 25000us limit 1000000 duplicate 1% reorder 3% corrupt 2% seed 9"
    assert delay_words(stage, seed=9) == on


def test_a_token_bucket_next_to_a_host_frees_the_sender():
    raw = _raw(qdisc="codel")
    raw["links"]["air"]["between"] = ["a", "b"]
    del raw["links"]["lan"], raw["nodes"]["r"]
    assert "mirror dev wire trap" in setup_script(_topology(raw), {})
    behind_router = setup_script(_topology(qdisc="codel"), {})
    assert behind_router.count("mirror dev wire trap") == 1  # b's side, whose sender is a host
    assert "mirror" not in setup_script(_topology(), {})


def test_quickack_offload_and_host_qdisc():
    raw = _raw()
    raw["nodes"]["b"] = {"delayed_ack": False, "initcwnd": 40}
    raw["nodes"]["a"] = {"offload": True, "qdisc": "fq", "sysctl": {"net.ipv4.tcp_sack": 0}}
    text = setup_script(_topology(raw), {})
    assert "route add 10.1.0.0/24 via 10.2.0.1 quickack 1 initcwnd 40" in text
    assert "route change 10.2.0.0/24 dev air src 10.2.0.2 quickack 1 initcwnd 40" in text
    assert "ethtool -K lan tso off" in text
    assert "qdisc add dev lan root handle 1: fq" in text
    assert "net.ipv4.tcp_sack=0" in text


def test_big_pipes_get_big_windows():
    raw = _raw(rate="90Mbit", delay="275ms", buffer="1BDP")
    assert "'net.ipv4.tcp_rmem=4096 131072 49" in setup_script(_topology(raw), {})


def test_bdp_needs_a_flow():
    raw = _raw()
    raw["nodes"]["c"] = {}
    raw["links"]["side"] = {"between": ["r", "c"], "rate": "1Mbit", "buffer": "1BDP"}
    with pytest.raises(AirlabError, match=r"links\.side\.buffer: no flow crosses"):
        _topology(raw)


def _direct(**link):
    raw = _raw()
    raw["links"] = {"air": {"between": ["a", "b"], "rate": "10Mbit", "buffer": "100pkt", **link}}
    raw["nodes"] = {"a": {}, "b": {}}
    return build_topology(parse_scenario(raw, "t"))


def _part(text, head):
    """The lines of one here-document."""
    return text.split(f"{head} <<'EOF'\n")[1].split("EOF\n")[0].splitlines()


def test_a_host_queue_is_at_the_root_of_the_senders_device():
    t = _direct(queue="host", frame_time="8us", delay="1ms")
    ab, ba = t.stages["air", 0], t.stages["air", 1]
    assert [(s.rate_ns, s.rate_dev) for s in (ab, ba)] == [("a", "air"), ("b", "air")]
    assert (ab.kind, ab.frame_bytes) == ("htb", 10)
    text = setup_script(t, {})
    own = _part(text, "tc -n a -batch -")
    assert own[0] == "qdisc add dev air root handle 10: htb default 1"
    assert own[1].endswith("burst 1514 cburst 1514 quantum 1514 overhead 10")
    assert own[2] == "qdisc add dev air parent 10:1 handle 1000: pfifo limit 100"
    assert "handle 1001: pfifo limit 100" in "\n".join(_part(text, "tc -n b -batch -"))
    wire = _part(text, "tc -n waira -batch -")
    assert not any("htb" in line or "trap" in line for line in wire)
    assert wire[-1].startswith("qdisc add dev host root handle 3001: netem delay 1000us")
    assert "sch_htb" in kernel_modules(t)


def test_a_shared_medium_is_one_class_with_a_queue_for_each_direction():
    t = _direct(queue="shared", frame_time="800us", reverse={"buffer": "7pkt"})
    ab, ba = t.stages["air", 0], t.stages["air", 1]
    assert [(s.rate_ns, s.rate_dev, s.rate_handle) for s in (ab, ba)] == [("a", "air", "10:")] * 2
    text = setup_script(t, {})
    own = _part(text, "tc -n a -batch -")
    assert [line for line in own if "parent 10: classid 10:1 htb rate 10000000bit" in line]
    assert "qdisc add dev air parent 10:2 handle 1000: pfifo limit 100" in own
    assert "qdisc add dev air parent 10:3 handle 1001: pfifo limit 7" in own
    assert own[-1] == "filter add dev airm ingress matchall action mirred egress redirect dev air"
    first = _part(text, "tc -n waira -batch -")
    assert "prio 1 bpf" in first[1] and first[1].endswith("redirect dev host")
    assert "prio 2 matchall" in first[2] and first[2].endswith("redirect dev wire")
    assert first[4].endswith("redirect dev medium")
    assert "mirror dev wire trap" in "\n".join(_part(text, "tc -n wairb -batch -"))
    assert "link set dev airm up" in text
    assert "cls_bpf" in kernel_modules(t)


@pytest.mark.parametrize(("family", "program"), [
    (4, "5,48 0 0 15,84 0 0 252,21 0 1 4,6 0 0 4294967295,6 0 0 0"),
    (6, "5,40 0 0 14,84 0 0 4032,21 0 1 64,6 0 0 4294967295,6 0 0 0"),
])  # fmt: skip
def test_prio_has_two_strict_bands(family: int, program: str) -> None:
    raw = {**_raw(qdisc="prio", buffer="50pkt"), "ip": family}
    lines = rate_commands(_topology(raw).stages["air", 0], family)
    assert "htb rate 5000000bit" in lines[1]
    assert "prio bands 2 priomap" in lines[2]
    assert lines[3].endswith("pfifo limit 50") and lines[4].endswith("pfifo limit 2")
    assert f'bytecode "{program}"' in lines[5]
    assert {"sch_prio", "cls_bpf", "sch_htb"} <= set(kernel_modules(_topology(raw)))


def test_prio_counts_packets() -> None:
    with pytest.raises(AirlabError, match="prio counts packets"):
        _topology(qdisc="prio", buffer="64kB")


def test_cake_shapes_by_itself_and_knows_the_round_trip() -> None:
    t = _topology(qdisc="cake", buffer="50pkt", delay="275ms")
    last = rate_commands(t.stages["air", 0])[-1]
    assert last.endswith("cake bandwidth 5000000bit diffserv4 rtt 550000us memlimit 115200")
    assert {"sch_cake", "sch_htb"} <= set(kernel_modules(t))
    near = rate_commands(_topology(qdisc="cake", buffer="50pkt", delay="5ms").stages["air", 0])
    assert "rtt 100000us" in near[-1]


def test_a_host_asks_for_a_segment_size() -> None:
    raw = _raw()
    raw["nodes"]["b"] = {"mss": 1000}
    text = setup_script(_topology(raw), {})
    assert text.count("advmss 1012") == 2, "the route back, and the one of the subnet"
