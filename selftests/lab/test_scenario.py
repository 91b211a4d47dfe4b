"""The scenario language: what it reads, and what it says about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab import scenario as sc
from airlab.algorithms import lookup
from airlab.model import AirlabError
from airlab.plan import build_plan, cells

ROOT = Path(__file__).resolve().parents[2] / "testbed"
SCENARIOS = sorted((ROOT / "scenarios").glob("*.toml"))

BASE = """
schema = 1
name = "t"
title = "t"
purpose = "does it?"
duration = "10s"
cc = ["reno", "cubic"]
[nodes.a]
[nodes.r]
role = "router"
[nodes.b]
[links.lan]
between = ["a", "r"]
[links.air]
between = ["r", "b"]
rate = "5Mbit"
delay = "25ms"
buffer = "30pkt"
[[flows]]
from = "a"
to = "b"
"""


def _load(tmp_path, text=BASE, **sets):
    path = tmp_path / "t.toml"
    path.write_text(text)
    return sc.load_scenario(path, {k.replace("__", "."): v for k, v in sets.items()})


def _fault(tmp_path, old, new, **sets):
    assert old in BASE
    with pytest.raises(AirlabError) as caught:
        _load(tmp_path, BASE.replace(old, new, 1), **sets)
    return str(caught.value)


def test_reads_the_base(tmp_path):
    got = _load(tmp_path)
    assert got.duration == 10_000_000
    assert (got.links["air"].rate, got.links["air"].delay) == (5_000_000, 25_000)
    assert got.seeds == 5
    assert got.trace.acks


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_published_scenarios_load_and_compile(path):
    got = sc.load_scenario(path)
    assert got.name == path.stem
    assert got.purpose.endswith("?")
    for cell in cells(got, seeds=1):
        assert build_plan(got, cell).files["setup.sh"]


def test_a_condition_that_is_set_and_not_swept_needs_no_point():
    figure = sc.load_scenario(ROOT / "scenarios" / "imtcp-harmless.toml", {"case": "beside"})
    assert figure.unmet({"case": "beside", "links.wan.rate": "10Mbit", "cross.0.size": 1472}) == {}
    asked = {"case": "alone", "cross.7.size": 1472, "links.none.rate": "10Mbit"}
    assert figure.unmet(asked) == asked
    swept = sc.load_scenario(ROOT / "scenarios" / "imtcp-harmless.toml")
    assert swept.unmet({"case": "beside"}) == {"case": "beside"}


def test_schema_is_current():
    published = sc.SCHEMA_PATH.read_text()
    assert published == sc.json_schema(), "run: python -m airlab.scenario (in testbed/)"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('rate = "5Mbit"', 'rtae = "5Mbit"', "links.air.rtae: unknown key; did you mean 'rate'?"),
        ('purpose = "does it?"', "", "purpose: missing; add it"),
        ('rate = "5Mbit"', "rate = 5", "links.air.rate: 5 has no unit"),
        ('rate = "5Mbit"', 'rate = "500Mbit"', "lower it, raise gips or set allow_fast = true"),
        (
            'duration = "10s"',
            'duration = "10s"\ngips = 3',
            "gips: Input should be 1, 2, 4, 8 or 16 (is 3)",
        ),
        ('delay = "25ms"', 'delay = "90s"', "links.air.delay: 90 s is out of range; 0 to 60s"),
        ('delay = "25ms"', "ber = 0.5", "links.air.ber: '0.5' is out of range"),
        ('delay = "25ms"', "ber = 1e-6\nloss = 0.1", "ber and loss exclude each other"),
        ('between = ["r", "b"]', 'between = ["r", "c"]', "links.air.between: no node 'c'"),
        ('between = ["r", "b"]', 'between = ["r", "r"]', "both ends are 'r'"),
        ('between = ["r", "b"]', 'between = ["r", "a"]', "flows.0: no path"),
        ('role = "router"', 'role = "host"', "no path from 'a' to 'b'; add a link (only routers"),
        ('from = "a"', 'from = "r"', "'r' is a router"),
        ('from = "a"', 'from = "b"', "from and to are the same node"),
        ('from = "a"', 'from = "a"\nstop = "11s"', "flows.0.stop: after the end"),
        ('from = "a"', 'from = "a"\nbytes = "1MB"\nstop = "5s"', "exclude each other"),
        ('from = "a"', 'from = "a"\nstart = "10s"', "may not start before it stops"),
        ('from = "a"', 'from = "a"\nstart = "8s"\njitter = "2s"', "jitter make up to 10 s"),
        ('from = "a"', 'from = "a"\nrole = "cross"', "none has role measured"),
        ('cc = ["reno", "cubic"]', 'cc = ["renoo"]', "did you mean 'reno'?"),
        ('cc = ["reno", "cubic"]', 'cc = ["reno", "reno"]', "written twice"),
        ('buffer = "30pkt"', 'buffer = "30"', "a buffer needs one of pkt, BDP"),
        ('buffer = "30pkt"', 'buffer = "64kB"\nqdisc = "codel"', "codel counts packets"),
        ('rate = "5Mbit"', "", "links.air.buffer: has no meaning without rate"),
        ('buffer = "30pkt"', "ecn = true", "ecn: needs qdisc codel"),
        ('buffer = "30pkt"', "min_len = 60", "only has a meaning beside drop"),
        ('buffer = "30pkt"', 'gilbert = {good="1s", bad="1s"}', "exactly one of bad_ber and bad_l"),
        ('buffer = "30pkt"', 'gilbert = {good="1s", bda="1s"}', "did you mean 'bad'?"),
        ('duration = "10s"', 'duration = "10ms"', "at least 1s"),
        ("schema = 1", "schema = 2", "schema: Input should be 1"),
        ("[nodes.b]", "[nodes.b]\nrole = 'hots'", "nodes.b.role: Input should be 'host' or"),
        ("[nodes.b]", "[nodes.b]\n[nodes.wairb]", "the name is taken by link air's wire"),
        ("[nodes.b]", "[nodes.b]\nsysctl = {tcp_sack = 0}", "pattern"),
        (
            'delay = "25ms"',
            'frame_time = "1ms"',
            "links.air.frame_time: needs queue host or shared",
        ),
        ('rate = "5Mbit"\n', 'queue = "host"\n', "links.air.queue: host needs a rate"),
        ('buffer = "30pkt"', 'buffer = "64kB"\nqueue = "host"', "a device counts packets"),
        ('buffer = "30pkt"', 'queue = "host"\nqdisc = "red"', "red is not offered"),
        ('buffer = "30pkt"', 'queue = "host"\nqdisc = "cake"', "cake is not offered"),
        (
            'buffer = "30pkt"',
            'buffer = "30pkt"\nqdisc = "cake"\n[[events]]\nat = "2s"\nlink = "air"\nrate = "1Mbit"',
            "cake shapes to the rate it began with",
        ),
        (
            'buffer = "30pkt"',
            'queue = "shared"\nreverse = {rate = "1Mbit"}',
            "links.air.reverse.rate: both directions share one medium",
        ),
        (
            "[nodes.b]",
            '[nodes.b]\nqdisc = "fq"\n[links.own]\nbetween = ["b", "r"]\nrate = "1Mbit"'
            '\nqueue = "host"',
            "nodes.b.qdisc: its device has the queue of own",
        ),
        (
            'buffer = "30pkt"',
            'queue = "host"\n[[events]]\nat = "1s"\nlink = "air"\nrate = "1Mbit"',
            "can only have outages that drop",
        ),
        ("schema = 1", 'schema = 1\ncase = "x"', "case: there is no table of cases"),
        ("[nodes.b]", "[nodes.b]\n[cases.x]\ncc = 'reno'", "cases.x.'cc': a case cannot change"),
        (
            "[nodes.b]",
            "[nodes.b]\n[cases.x]\n'links.air.bre' = 1e-6\n[sweep]\ncase = ['x']",
            "links.air.bre: unknown key",
        ),
        ("[nodes.b]", "[nodes.b]\n[cases.x]\n[sweep]\ncase = ['y']", "case: no case 'y'"),
    ],
)
def test_names_file_key_and_remedy(tmp_path, old, new, says):
    text = _fault(tmp_path, old, new)
    assert says in text
    assert text.startswith(str(tmp_path / "t.toml") + ": ")


CASES = """
[cases.slow]
"links.air.rate" = "1Mbit"
"nodes.b.sysctl.net.ipv4.tcp_rmem" = "1 2 3"
[cases.plain]
[sweep]
case = ["plain", "slow"]
"links.air.ber" = [1e-6, 1e-5]
"""


def test_cases_are_named_overrides(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(BASE + CASES)
    got = sc.load_scenario(path)
    assert [(c.point["case"], c.point["links.air.ber"]) for c in cells(got, ["reno"], 1)] == [
        ("plain", 1e-6), ("plain", 1e-5), ("slow", 1e-6), ("slow", 1e-5),
    ]  # fmt: skip
    slow = got.at_point({"case": "slow", "links.air.ber": 1e-5})
    assert (slow.links["air"].rate, slow.links["air"].ber) == (10**6, 1e-5)
    assert slow.nodes["b"].sysctl == {"net.ipv4.tcp_rmem": "1 2 3"}
    assert got.at_point({"case": "plain"}).links["air"].rate == 5 * 10**6


def test_a_key_that_a_case_decides_cannot_be_set_from_outside(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(BASE + CASES)
    with pytest.raises(AirlabError, match=r"--set links\.air\.rate: the case slow sets it"):
        sc.load_scenario(path, {"links.air.rate": "2Mbit"})
    chosen = sc.load_scenario(path, {"links.air.rate": "2Mbit", "case": "plain"})
    assert chosen.links["air"].rate == 2 * 10**6


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "[nodes.b]",
            "[nodes.b]\n[cases.x]\n'links.air.ber' = 1e-6\n[sweep]\ncase = ['x']\n"
            "'links.air.ber' = [1e-6, 1e-5]",
            "cases.x.'links.air.ber': is swept, too",
        ),
    ],
)
def test_a_key_is_decided_once(tmp_path, old, new, says):
    text = _fault(tmp_path, old, new)
    assert says in text
    assert text.startswith(str(tmp_path / "t.toml") + ": ")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ('at = "11s"\nlink = "air"\noutage = "1s"', "events.0.at: not before the experiment's end"),
        ('at = "9.5s"\nlink = "air"\noutage = "1s"', "lasts beyond the experiment's end"),
        ('at = "1s"\nlink = "aia"\noutage = "1s"', "did you mean 'air'?"),
        ('at = "1s"\nlink = "air"', "exactly one of outage"),
        ('at = "1s"\nlink = "lan"\nrate = "1Mbit"', "has no rate to change"),
        ('at = "1s"\nlink = "air"\nrate = "1Mbit"\nmode = "hold"', "belongs to outage"),
        ('at = "1s"\nlink = "air"\nhandoff = {gap = "0ms"}', "changes nothing"),
        ('at = "1s"\nlink = "air"\nhandoff = {gpa = "1s"}', "events.0.handoff.gpa: unknown key"),
    ],
)
def test_events(tmp_path, event, says):
    with pytest.raises(AirlabError, match=r"events\.0") as caught:
        _load(tmp_path, f"{BASE}\n[[events]]\n{event}\n")
    assert says in str(caught.value)


def test_overlapping_outages(tmp_path):
    row = '\n[[events]]\nat = "{}s"\nlink = "air"\noutage = "2s"\ndirection = "{}"\n'
    _load(tmp_path, BASE + row.format(1, "forward") + row.format(2, "reverse"))
    with pytest.raises(AirlabError, match=r"events\.1: overlaps events\.0 on link air"):
        _load(tmp_path, BASE + row.format(1, "both") + row.format(2, "reverse"))


def test_holding_needs_droptail(tmp_path):
    text = BASE.replace('buffer = "30pkt"', 'qdisc = "codel"')
    text += '\n[[events]]\nat = "1s"\nlink = "air"\noutage = "1s"\nmode = "hold"\n'
    with pytest.raises(AirlabError, match="needs qdisc droptail"):
        _load(tmp_path, text)


def test_all_faults_at_once(tmp_path):
    text = _fault(tmp_path, 'rate = "5Mbit"', 'rate = "x"\nfoo = 1', duration="20")
    assert len(text.splitlines()) == 3


def test_not_toml_and_not_there(tmp_path):
    with pytest.raises(AirlabError, match="not valid TOML"):
        _load(tmp_path, "name = ")
    with pytest.raises(AirlabError, match="cannot read it"):
        sc.load_scenario(tmp_path / "none.toml")


def test_overrides(tmp_path):
    got = _load(tmp_path, duration="60s", links__air__ber="1e-6", flows__0__cc="j", cc="j,reno")
    assert (got.duration, got.links["air"].ber) == (60_000_000, 1e-6)
    assert (got.flows[0].cc, got.cc) == ("j", ["j", "reno"])
    assert got.raw["links"]["air"]["ber"] == 1e-6


def test_a_list_is_a_sweep_and_one_value_ends_it(tmp_path):
    got = _load(tmp_path, links__air__ber="1e-6, 4e-6")
    assert got.sweep == {"links.air.ber": [1e-6, 4e-6]}
    assert [c.point for c in cells(got, ["reno"], 1)] == [
        {"links.air.ber": 1e-6},
        {"links.air.ber": 4e-6},
    ]
    text = BASE.replace("[[flows]]", '[sweep]\n"links.air.ber" = [1e-6, 1e-5]\n[[flows]]')
    assert _load(tmp_path, text, links__air__ber="2e-6").sweep == {}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("links.air.bre", "1e-6", "did you mean 'ber'?"),
        ("links.aia.ber", "1e-6", "no 'aia' there; did you mean 'air'?"),
        ("flows.3.cc", "reno", "not one of the rows 0 to 0"),
        ("links.air.ber", "1e-6,2", "links.air.ber: '2' is out of range"),
        ("duration.x", "2", "below a value"),
        ("duration", "", "has no value"),
    ],
)
def test_bad_overrides(tmp_path, key, value, says):
    (tmp_path / "t.toml").write_text(BASE)
    with pytest.raises(AirlabError) as caught:
        sc.load_scenario(tmp_path / "t.toml", {key: value})
    assert says in str(caught.value)


def test_claims(tmp_path):
    claim = '\n[[expect]]\nid = "x"\nclaim = "c"\nof = "reno"\n'
    with pytest.raises(AirlabError, match="give min, max or both"):
        _load(tmp_path, BASE + claim)
    with pytest.raises(AirlabError, match=r"min \(2\) is more than max \(1\)"):
        _load(tmp_path, BASE + claim + "min = 2\nmax = 1\n")
    swept = '\n[sweep]\n"links.air.ber" = [1e-6]\n'
    where = 'min = 1\nwhere = {"links.air.bre" = 1e-6}\n'
    with pytest.raises(AirlabError, match=r"not swept; did you mean 'links.air.ber'\?"):
        _load(tmp_path, BASE + swept + claim + where)
    with pytest.raises(AirlabError, match="difference: to what"):
        _load(tmp_path, BASE + claim + "min = 1\ndifference = true\n")


def test_variants_are_labels(tmp_path):
    text = BASE.replace('["reno", "cubic"]', '["reno", "fastj"]')
    text += '\n[variants.fastj]\ncc = "j"\nparams = {min_interval_us = 0}\n'
    got = _load(tmp_path, text)
    chosen = got.algorithm("fastj")
    assert (chosen.kernel_cc, chosen.params) == ("j", (("min_interval_us", "0"),))
    setup = build_plan(got, cells(got, ["fastj"], 1)[0]).files["setup.sh"].decode()
    assert "echo 0 >/sys/module/tcp_j/parameters/min_interval_us" in setup


def test_parameters_of_a_built_in_algorithm(tmp_path):
    text = BASE.replace('["reno", "cubic"]', '["reno", "plain"]')
    text += '\n[variants.plain]\ncc = "cubic"\nparams = { "tcp_cubic.hystart" = 0 }\n'
    got = _load(tmp_path, text)
    setup = build_plan(got, cells(got, ["plain"], 1)[0]).files["setup.sh"].decode()
    assert "echo 0 >/sys/module/tcp_cubic/parameters/hystart" in setup


def test_labels():
    assert dict(lookup("newreno").sysctls) == {"net.ipv4.tcp_sack": "0"}
    assert lookup("newreno").kernel_cc == "reno"
    assert lookup("j").modules == ("tcp_j",)
    with pytest.raises(AirlabError, match=r"did you mean 'westwood'.*known labels"):
        lookup("westwod")


SHADOW = (
    BASE
    + """
[[events]]
at = "1s"
link = "air"
outage = "1s"
every = "3s"
"""
)


def test_an_event_comes_again_and_again(tmp_path):
    made = _load(tmp_path, SHADOW)
    assert [e.at for e in made.events] == [1_000_000, 4_000_000, 7_000_000]
    assert all(e.outage == 1_000_000 for e in made.events)
    swept = made.at_point({"events.0.every": "4s"})
    assert [e.at for e in swept.events] == [1_000_000, 5_000_000, 9_000_000]


def test_jitter_leaves_room_and_is_the_same_for_a_link(tmp_path):
    late = SHADOW.replace('every = "3s"', 'every = "3s"\njitter = "2s"')
    made = _load(tmp_path, late)
    assert [e.at for e in made.events] == [1_000_000, 4_000_000, 7_000_000]
    assert len(_load(tmp_path, late.replace('"2s"', '"2100ms"')).events) == 2
    other = late + '[[events]]\nat = "3s"\nlink = "air"\noutage = "100ms"\n'
    with pytest.raises(AirlabError, match="jitter"):
        _load(tmp_path, other)


@pytest.mark.parametrize(
    ("every", "outage", "complaint"),
    [("500ms", "1s", "overlaps"), ("0", "1s", "every: a time above 0"), ("2us", "1us", "2000")],
)
def test_repetitions_that_cannot_be(tmp_path, every, outage, complaint):
    text = SHADOW.replace('"3s"', f'"{every}"').replace('outage = "1s"', f'outage = "{outage}"')
    with pytest.raises(AirlabError, match=complaint):
        _load(tmp_path, text)
