"""The compiler: determinism, schedules, events, calibration, environment."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airlab.model import AirlabError, Cell, CellPlan
from airlab.patterns import OUTAGE, Pattern
from airlab.plan import build_plan, cells
from airlab.scenario import load_scenario, parse_scenario

ROOT = Path(__file__).resolve().parents[2] / "testbed"


def _raw(**more):
    return {
        "schema": 1, "name": "t", "title": "t", "purpose": "?", "duration": "10s",
        "cc": ["reno", "westwood", "j"], "seeds": 2,
        "nodes": {"a": {}, "r": {"role": "router"}, "b": {}},
        "links": {
            "lan": {"between": ["a", "r"]},
            "air": {"between": ["r", "b"], "rate": "5Mbit", "delay": "25ms", "buffer": "30pkt"},
        },
        "flows": [{"from": "a", "to": "b"}],
        **more,
    }  # fmt: skip


def _plan(raw, cc="reno", seed=1):
    return build_plan(parse_scenario(raw, "t"), Cell(cc, seed))


def _lines(plan, name="main.tsv"):
    return [row.split("\t") for row in plan.files[name].decode().splitlines()]


def _labelled(plan, label, name="main.tsv"):
    return next(row for row in _lines(plan, name) if row[2] == label)


def _env(plan):
    rows = plan.files["env"].decode().splitlines()
    return {k: v.strip('"') for k, _, v in (row.partition("=") for row in rows)}


def test_cells_go_through_points_seeds_and_algorithms():
    s = parse_scenario(_raw(sweep={"links.air.ber": [1e-6, 1e-5]}), "t")
    got = cells(s)
    assert len(got) == 12
    assert [c.cc for c in got[:3]] == ["reno", "westwood", "j"]
    assert [c.seed for c in got[:6]] == [1, 1, 1, 2, 2, 2]
    assert len(cells(s, ["j"], [7], {"links.air.ber": [1e-7]})) == 1
    with pytest.raises(AirlabError, match="unknown congestion control"):
        cells(s, ["nope"])


def test_same_inputs_same_plan_in_another_process():
    path = ROOT / "scenarios" / "lossy.toml"
    s = load_scenario(path)
    here = build_plan(s, cells(s)[0]).key
    code = (
        "import sys; from airlab.scenario import load_scenario; from airlab.plan import *;"
        "s = load_scenario(sys.argv[1]); print(build_plan(s, cells(s)[0]).key)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "99"}
    run = [sys.executable, "-c", code, str(path)]
    assert subprocess.check_output(run, env=env, text=True).strip() == here
    assert build_plan(s, cells(s, seeds=[2])[0]).key != here


def test_algorithms_share_the_channel_and_the_start():
    raw = _raw()
    raw["links"]["air"]["ber"] = 1e-6
    one, two = _plan(raw, "reno"), _plan(raw, "j")
    assert one.files["patterns/air-ab.bin"] == two.files["patterns/air-ab.bin"]
    assert one.files["patterns/air-ab.bin"] != one.files["patterns/air-ba.bin"]
    assert one.flows[0].start_us == two.flows[0].start_us
    assert 0 <= one.flows[0].start_us <= 10_000
    assert one.flows[0].start_us != _plan(raw, "reno", 2).flows[0].start_us


def test_plan_survives_json():
    plan = _plan(_raw())
    again = CellPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.to_json() == plan.to_json()


def test_a_faster_processor_is_another_experiment_and_the_usual_one_stays_unsaid():
    raw = _raw()
    usual = _plan(raw)
    fast = _plan(raw | {"gips": 8})
    assert "gips" not in usual.to_json()
    assert CellPlan.from_json(fast.to_json()).gips == 8
    assert fast.key != usual.key
    assert any(note.startswith("gips 8") for note in fast.notes)


def test_main_schedule():
    raw = _raw()
    raw["links"]["air"]["ber"] = 1e-6
    plan = _plan(raw, "westwood")
    labels = [row[2] for row in _lines(plan)]
    assert labels == ["f1.recv", "air-ab.arm", "air-ba.arm", "f1.send"]
    assert _labelled(plan, "air-ab.arm")[0] == "-30000"
    send = _labelled(plan, "f1.send")
    assert send[1] == "a"
    assert "--to 10.2.0.2 --port 5001 --cc westwood" in send[3]
    assert "--json /out/json/f1.json" in send[3]
    assert all(len(row) == 4 and "  " not in row[3] for row in _lines(plan))
    assert (
        "airchan attach --name air-ab --netns wairb --dev host" in plan.files["setup.sh"].decode()
    )
    assert plan.kernel_args == ("rep=1",)
    assert "tcp_westwood" in plan.modules


def test_environment():
    raw = _raw()
    raw["links"]["air"]["ber"] = 1e-6
    env = _env(_plan(raw))
    assert env["NODES"] == "a r b waira wairb"
    assert env["CHANNELS"] == "air-ab air-ba"
    assert env["CAPTURE"] == "b:air:80"
    assert env["TRACE"] == "1"
    assert int(env["MAIN_END_US"]) > 10_050_000
    assert int(env["TRACE_KB"]) >= 2048
    raw["trace"] = {"acks": False, "queue": False, "modules": False, "capture": False}
    plan = _plan(raw)
    assert (plan.trace, plan.capture) == (False, False)
    assert _env(plan)["TRACE"] == "0"
    assert plan.files["trace.events"] == b""


def test_room_for_traces_and_capture_grows_with_what_the_path_carries():
    raw = _raw()
    raw["links"]["air"]["rate"] = "50Mbit"
    small = _plan(raw)
    raw["duration"] = "200s"
    # 50 Mbit/s are 4128 full frames a second.
    assert _plan(raw).results_mb > 2 * 200 * 4128 * (80 + 380) >> 20
    assert _plan(raw).results_mb > 5 * small.results_mb
    raw["trace"] = {"acks": False, "queue": False, "modules": False, "capture": False}
    assert _plan(raw).results_mb == 0
    assert "results_mb" not in small.to_json()


def test_tracepoints():
    text = _plan(_raw(), "j").files["trace.events"].decode()
    assert "tcp/tcp_probe\tdport >= 5001 && dport <= 5001\n" in text
    assert f"handle == {0x10 << 16} || handle == {0x11 << 16}" in text
    assert "j/j_abe\t\n" in text
    assert "j/j_abe" not in _plan(_raw(), "reno").files["trace.events"].decode()


def test_calibration_fits_its_end_and_leaves_the_queue_time_to_drain():
    plan = _plan(_raw())
    probe = plan.probes[0]
    assert (probe.rate_bps, probe.buffer_pkts) == (5_000_000, 30)
    assert probe.rtt_us == 50_000 + round(2 * 8 * 106 / 5)  # propagation and a ping's own length
    assert probe.burst_pkts >= 39
    for phase in ("before", "after"):
        rows = _lines(plan, f"{phase}.tsv")
        kinds = [row[2].split(".")[2] for row in rows]
        assert kinds == ["ping", "ping", "rate", "rate", "burst", "burst"]
        assert int(rows[-1][0]) + 200_000 < int(_env(plan)[f"{phase.upper()}_END_US"])
    assert int(_lines(plan, "after.tsv")[0][0]) >= 30 * 1514 * 8 / 5


def test_no_buffer_probe_behind_a_slower_queue_or_an_aqm():
    raw = _raw()
    raw["links"]["air"]["qdisc"] = "codel"
    assert _plan(raw).probes[0].buffer_pkts is None
    raw = _raw()
    raw["links"]["lan"]["rate"] = "6Mbit"
    probe = _plan(raw).probes[0]
    assert (probe.rate_bps, probe.buffer_pkts) == (5_000_000, None)


def _event(**event):
    return _plan(_raw(events=[{"at": "2s", "link": "air", **event}]))


def test_drop_outage_is_a_window_of_the_pattern():
    plan = _event(outage="500ms")
    pattern = Pattern.from_bytes(plan.files["patterns/air-ab.bin"])
    window = pattern.windows[0]
    assert (window.start_ns, window.end_ns, window.kind) == (2 * 10**9, 25 * 10**8, OUTAGE)
    assert plan.intervals[0].kind == "outage"
    assert all(stage.constant for stage in plan.stages)
    assert not [row for row in _lines(plan) if row[3].startswith("tc ")]


def test_jitter_is_the_seeds_and_moves_all_of_a_link_alike():
    event = {"at": "1s", "link": "air", "outage": "500ms", "every": "3s", "jitter": "2s"}
    late = []
    for seed in range(1, 9):
        plans = [_plan(_raw(events=[event]), cc, seed) for cc in ("reno", "j")]
        starts = [i.start_us for i in plans[0].intervals]
        assert starts == [i.start_us for i in plans[1].intervals]
        assert [b - a for a, b in itertools.pairwise(starts)] == [3_000_000] * (len(starts) - 1)
        late.append(starts[0] - 1_000_000)
    assert all(0 <= moved <= 2_000_000 for moved in late)
    assert len(set(late)) == len(late)


def test_a_flows_jitter_is_its_own_and_the_same_for_every_algorithm():
    flow = {"from": "a", "to": "b", "start": "1s", "count": 2, "jitter": "3s"}
    late = set()
    for seed in range(1, 9):
        starts = [
            [f.start_us for f in _plan(_raw(flows=[flow]), cc, seed).flows] for cc in ("reno", "j")
        ]
        assert starts[0] == starts[1]
        assert all(1_000_000 <= start <= 4_000_000 for start in starts[0])
        late.update(starts[0])
    assert len(late) == 16
    assert max(late) > 2_000_000


def test_hold_outage_blocks_and_releases():
    plan = _event(outage="500ms", mode="hold", direction="forward")
    assert _labelled(plan, "air-ab.e1.block")[0] == "2000000"
    release = _labelled(plan, "air-ab.e1.release")
    assert release[0] == "2500000"
    assert release[3].endswith("parent 10:1 handle 1000: plug release_indefinite")
    assert [stage.constant for stage in plan.stages] == [False, True]
    assert not any(name.startswith("patterns/") for name in plan.files)


def test_rate_and_delay_changes_are_complete_and_undone():
    plan = _event(rate="2Mbit")
    row = _labelled(plan, "air-ab.e1.rate")[3]
    assert row == "tc -n waira qdisc change dev wire root handle 10: netem rate 2000000bit limit 30"
    back = _labelled(plan, "air-ab.restore.rate", "after.tsv")
    assert back[3].endswith("netem rate 5000000bit limit 30")
    plan = _event(delay="40ms", direction="forward")
    row = _labelled(plan, "air-ab.e1.delay")[3]
    assert row.endswith("root handle 3000: netem delay 40000us limit 1000000")
    assert _labelled(plan, "air-ab.restore.delay", "after.tsv")[3].endswith("25000us limit 1000000")


def test_rate_change_under_an_aqm_changes_the_class():
    raw = _raw(events=[{"at": "2s", "link": "air", "rate": "2Mbit"}])
    raw["links"]["air"]["qdisc"] = "codel"
    row = _labelled(_plan(raw), "air-ab.e1.rate")[3]
    assert "class change dev wire parent 10: classid 10:1 htb rate 2000000bit" in row


def test_handoff_policies():
    def handoff(inflight):
        spec = {"gap": "100ms", "rate": "2Mbit", "delay": "40ms", "inflight": inflight}
        return _event(handoff=spec, direction="forward")

    drop = handoff("drop")
    assert _labelled(drop, "air-ab.e1.rate")[0] == "2000000"
    assert "qdisc replace dev wire root handle 2000:" in _labelled(drop, "air-ab.e1.rate")[3]
    assert Pattern.from_bytes(drop.files["patterns/air-ab.bin"]).windows[0].end_ns == 21 * 10**8
    restored = _labelled(drop, "air-ab.restore.rate", "after.tsv")[3]
    assert "replace dev wire root handle 10: netem rate 5000000bit" in restored
    hold = handoff("hold")
    times = {row[2]: int(row[0]) for row in _lines(hold) if ".e1." in row[2]}
    assert times["air-ab.e1.block"] < times["air-ab.e1.rate"] < times["air-ab.e1.release"]
    forward = handoff("forward")
    assert _labelled(forward, "air-ab.e1.rate")[0] == "2100000"
    assert not any(name.startswith("patterns/") for name in forward.files)


def test_netem_extras_are_off_while_calibrating():
    raw = _raw()
    raw["links"]["air"].update(reorder="1%", corrupt="1%")
    plan = _plan(raw)
    assert "corrupt 0%" in plan.files["setup.sh"].decode()
    assert "corrupt 1% seed " in _labelled(plan, "air-ab.extras")[3]
    assert "corrupt 0%" in _labelled(plan, "air-ab.restore.delay", "after.tsv")[3]


def test_flow_options():
    flow = {
        "from": "a", "to": "b", "bytes": "1MB", "verify": True, "recv_buffer": "64kB",
        "send_buffer": "1MB", "pause": [{"at": "2s", "for": "500ms"}], "app_rate": "1Mbit",
        "switch": [{"at": "3s", "cc": "cubic"}], "count": 2, "spacing": "1s",
    }  # fmt: skip
    plan = _plan(_raw(flows=[flow]))
    send, receive = _labelled(plan, "f2.send")[3], _labelled(plan, "f2.recv")[3]
    for words in (
        "--bytes 1000000 --close fin", "--pause 2000:500", "--switch 3000:cubic",
        "--app-rate 1000000", "--sndbuf 1000000",
    ):  # fmt: skip
        assert words in send
    assert "--rcvbuf 64000" in receive
    assert send.split("--verify ")[1].split()[0] == receive.split("--verify ")[1].split()[0]
    assert plan.flows[1].start_us >= 1_000_000
    assert "net.core.wmem_max=1000000" in plan.files["setup.sh"].decode()


def test_cross_traffic_is_seeded():
    cross = [{"from": "a", "to": "b", "rate": "1Mbit", "dist": "poisson", "start": "1s"}]
    row = _labelled(_plan(_raw(cross=cross)), "x1.send")
    assert row[0] == "1000000"
    assert "--dist poisson --seed " in row[3]
    assert row[3].endswith("--seconds 9.000000 --json /out/json/x1.json")


def test_settings_of_a_host_cannot_contradict():
    flows = [{"from": "a", "to": "b", "cc": "newreno"}, {"from": "a", "to": "b"}]
    with pytest.raises(AirlabError, match=r"nodes\.a: sends with newreno, reno"):
        _plan(_raw(flows=flows))


def test_newreno_turns_sack_off_at_its_sender_only():
    text = _plan(_raw(), "newreno").files["setup.sh"].decode()
    assert text.count("net.ipv4.tcp_sack=0") == 1
    assert text.count("net.ipv4.tcp_sack=1") == 1


def test_setup_is_valid_shell():
    for path in (ROOT / "scenarios").glob("*.toml"):
        s = load_scenario(path)
        text = build_plan(s, cells(s)[0]).files["setup.sh"]
        subprocess.run(["sh", "-n"], input=text, check=True)


def _wlan(**more):
    raw = _raw(cc=["reno"], **more)
    raw["nodes"] = {"a": {}, "b": {}}
    link = {"between": ["a", "b"], "queue": "shared", "rate": "11Mbit", "frame_time": "1ms"}
    raw["links"] = {"air": {**link, "buffer": "100pkt"}}
    return raw


def test_a_queue_on_the_senders_device_is_probed_and_counted_there():
    plan = _plan(_wlan())
    data, acks = plan.stages
    assert (data.rate_ns, data.rate_dev, data.rate_handle) == ("a", "air", "10:")
    assert (data.counted_handle, data.refuses, data.frame_bytes) == ("1000:", True, 1375)
    assert (acks.rate_ns, acks.counted_handle, acks.refuses) == ("a", "1001:", False)
    (probe,) = plan.probes
    assert probe.rate_bps == data.full_frames_bps == 11_000_000 * 1514 // (1514 + 1375)
    assert probe.buffer_pkts == 100
    assert probe.rtt_us == 0  # question and answer are less than the bucket of one full frame
    assert plan.files["trace.events"].count(b"handle == 1048576") == 2
    assert CellPlan.from_json(plan.to_json()).stages == plan.stages


def test_causes_are_asked_for_by_a_trigger():
    assert "trace.triggers" not in _plan(_wlan()).files
    plan = _plan(_wlan(trace={"causes": True}))
    line = b"tcp/tcp_cong_state_set\tstacktrace if dport >= 5001 && dport <= 5001\n"
    assert plan.files["trace.triggers"] == line


def test_small_queues_are_lifted_for_a_variant_only():
    raw = _wlan(variants={"then": {"cc": "reno", "small_queues": False}})
    assert "--tx-delay-ms" in _labelled(_plan(raw, "then"), "f1.send")[3]
    assert "--tx-delay-ms" not in _labelled(_plan(raw, "reno"), "f1.send")[3]
