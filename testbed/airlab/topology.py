"""From a scenario's nodes and links to devices, addresses, routes and queueing stages.

:func:`build_topology` resolves everything that does not depend on the seed; ``setup_script``
writes the ``ip``, ``tc`` and ``sysctl`` commands that build it.  docs/lab-internals.md section 3
draws how an emulated link runs through its two wire namespaces.

Choice of queueing discipline for the rate stage, and why:

* ``droptail`` with a buffer in packets: ``netem rate R limit B``.  It serialises every frame,
  the first after a pause too; the limit counts the frame being sent.
* ``droptail`` with a buffer in bytes: ``tbf`` with a bucket of one frame.  A ``bfifo`` below netem
  would not do: netem hands a frame to its child after serialising it, so the child never fills.
* a link with ``hold``: ``tbf`` over ``plug``.  The plug is then the buffer *before* the serialiser
  (counted in bytes, full frames times packets), so that what was held leaves at the link's rate;
  below netem the held frames would leave as one burst.
* an AQM: ``htb`` with one class, burst and quantum of one frame, and the AQM as its leaf.
* a queue on a node's own device (``queue = "host"`` or ``"shared"``): ``htb`` with a ``pfifo`` (or
  the AQM) as its leaf, at the root of that device, so that a full queue is refused to the sender
  and TCP small queues see it.  netem would not do: it takes frames off the socket's account.
* ``prio``: ``htb`` with two strict bands as its leaf.  Packets with DSCP LE go into the low one,
  which has room for :data:`LOW_BAND_PKTS`, all others into a drop-tail queue of the buffer's size.
* ``cake``: ``htb`` with a CAKE as its leaf that shapes to the same rate: only then it has
  priorities.

A shared medium is one ``htb`` class on the first node's device, with a class for each direction
below it: what is idle is lent to the other.  Frames of the second node come into the first one's
namespace by a second device, pass the medium like its own, and are sent back from the wire, which
knows them by their address (``_shared_tc``).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from .algorithms import Algorithm
from .model import AirlabError
from .patterns import derive_seed
from .scenario import Event, GilbertModel, Link, Scenario, directions
from .units import FULL_FRAME_BYTES, Buffer

DELAY_LIMIT_PKTS = 1_000_000
"""netem's limit on the delay stage: room for rate times delay of any link, never a loss."""

DEFAULT_BUFFER = Buffer("pkt", 100)
LOW_BAND_PKTS = 2
"""Room of ``prio``'s low band: whatever cannot be sent at once is dropped soon."""

CAKE_RTT_US = 100_000
"""What CAKE takes a path's RTT for unless it is told; here also the least."""

CAKE_FRAME_BYTES = 2304
"""What a full frame counts against CAKE's memory: its buffer in the kernel, not its bytes."""

LOW_DSCP = 1
"""LE, "lower effort" (RFC 8622): what ``prio`` puts into its low band."""

MAX_AUTOTUNE_BYTES = 6 * 2**20
BORROWED_BPS = 1000
"""Own rate of a direction on a shared medium: next to nothing, so that htb has each frame wait for
the medium; within its own rate a class would send beside the other's frames."""
NETEM_EXTRAS = ("duplicate", "reorder", "corrupt")


@dataclass(frozen=True)
class End:
    """A node's device on a link, with its address and MAC."""

    node: str
    dev: str
    addr: str
    mac: str


@dataclass(frozen=True)
class Stage:
    """One direction of a link, resolved: numbers, and where each part lives."""

    name: str
    link: str
    side: int
    src: str
    dst: str
    rate_bps: int | None
    delay_us: int
    buffer_pkts: int | None
    buffer_bytes: int | None
    qdisc: str
    ecn: bool
    ber: float
    loss: float
    gilbert: GilbertModel | None
    duplicate: float
    reorder: float
    corrupt: float
    drop: tuple[int, ...]
    min_len: int
    hold: bool
    rate_ns: str
    rate_dev: str
    delay_ns: str
    delay_dev: str
    index: int
    channel: str | None
    detach: bool
    queue: str = "wire"
    frame_us: int = 0

    @property
    def rate_handle(self) -> str:
        """The root qdisc of the rate stage: ``10:``.  A shared medium has one for both sides."""
        return f"{0x10 + self.index - (self.side if self.queue == 'shared' else 0):x}:"

    @property
    def frame_bytes(self) -> int:
        """What each frame costs besides its bits, as bytes at the link's rate."""
        return round(self.frame_us * (self.rate_bps or 0) / 8e6)

    @property
    def leaf_handle(self) -> str:
        """The AQM or plug below the rate stage."""
        return f"{0x1000 + self.index:x}:"

    @property
    def spare_handle(self) -> str:
        """The root qdisc that replaces the first one when a handoff empties the queue."""
        return f"{0x2000 + self.index:x}:"

    @property
    def delay_handle(self) -> str:
        """The netem of the delay stage."""
        return f"{0x3000 + self.index:x}:"

    @property
    def kind(self) -> str:
        """How the rate stage is made: netem, tbf, plug, htb, or none."""
        if self.rate_bps is None:
            return "plug" if self.hold else "none"
        if self.qdisc != "droptail" or self.queue != "wire":
            return "htb"
        return "tbf" if self.hold or self.buffer_bytes is not None else "netem"

    @property
    def has_extras(self) -> bool:
        """Whether netem duplicates, reorders or corrupts on this direction."""
        return bool(self.duplicate or self.reorder or self.corrupt)

    @property
    def queue_bytes(self) -> int:
        """The buffer in bytes of full frames."""
        if self.buffer_bytes is not None:
            return self.buffer_bytes
        return (self.buffer_pkts or 1000) * FULL_FRAME_BYTES


@dataclass(frozen=True)
class Topology:
    """Devices, addresses, stages and next hops of a scenario."""

    scenario: Scenario
    ends: dict[tuple[str, str], End]
    stages: dict[tuple[str, int], Stage]
    wires: tuple[str, ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All network namespaces: nodes, then wires."""
        return (*self.scenario.nodes, *self.wires)

    def path(self, src: str, dst: str) -> list[tuple[str, int]]:
        """Links from one node to another as (link, direction), fewest hops first."""
        return shortest_path(self.scenario, src, dst)

    def path_stages(self, src: str, dst: str) -> list[Stage]:
        """The emulated directions on the way; plain links have none."""
        return [self.stages[key] for key in self.path(src, dst) if key in self.stages]

    def rtt_us(self, src: str, dst: str) -> int:
        """Propagation there and back, in microseconds."""
        both = self.path_stages(src, dst) + self.path_stages(dst, src)
        return sum(stage.delay_us for stage in both)

    def address(self, node: str, peer: str) -> str:
        """The address at which ``peer`` reaches ``node``: that of its last link."""
        link, _ = self.path(peer, node)[-1]
        return self.ends[node, link].addr


def shortest_path(scenario: Scenario, src: str, dst: str) -> list[tuple[str, int]]:
    """Through routers, breadth first, links in file order; AirlabError when there is no way."""
    before: dict[str, tuple[str, str, int]] = {}
    edge = deque([src])
    while edge:
        at = edge.popleft()
        if at != src and scenario.nodes[at].role != "router":
            continue
        for name, link in scenario.links.items():
            if at not in link.between:
                continue
            side = 0 if link.between[0] == at else 1
            there = link.between[1 - side]
            if there != src and there not in before:
                before[there] = (at, name, side)
                edge.append(there)
    if dst not in before:
        raise AirlabError(f"no path from {src!r} to {dst!r}")
    way: list[tuple[str, int]] = []
    while dst != src:
        dst, name, side = before[dst]
        way.append((name, side))
    return way[::-1]


def build_topology(scenario: Scenario) -> Topology:
    """Resolve a checked scenario into devices, addresses and stages."""
    ends: dict[tuple[str, str], End] = {}
    stages: dict[tuple[str, int], Stage] = {}
    wires: list[str] = []
    for number, (name, link) in enumerate(scenario.links.items(), 1):
        for side, node in enumerate(link.between):
            ends[node, name] = _end(scenario.ip, number, side, node, name)
        if _emulated(scenario, name, link):
            wires += [f"w{name}a", f"w{name}b"]
            for side in (0, 1):
                stages[name, side] = _stage(scenario, name, link, side, len(stages))
    return Topology(scenario, ends, stages, tuple(wires))


def _end(family: int, number: int, side: int, node: str, dev: str) -> End:
    addr = f"10.{number}.0.{side + 1}" if family == 4 else f"fd00:{number:x}::{side + 1}"
    return End(node, dev, addr, _mac(number, side + 1))


def _mac(number: int, place: int) -> str:
    return f"02:00:00:00:{number:02x}:{place:02x}"


def _value(link: Link, side: int, name: str) -> object:
    """A link's key for one direction: reverse overrides, then the link's own."""
    if side == 1 and link.reverse is not None:
        own: object = getattr(link.reverse, name)
        if own is not None:
            return own
        laws = ("ber", "loss", "gilbert", "drop")
        if name in laws and any(getattr(link.reverse, law) is not None for law in laws):
            return None
    return getattr(link, name)


def _impairment(link: Link, side: int, name: str) -> object:
    return _value(link, side, name) if side in directions(link.direction) else None


_IMPAIRMENTS = ("ber", "loss", "gilbert", "duplicate", "reorder", "corrupt", "drop")


def _emulated(scenario: Scenario, name: str, link: Link) -> bool:
    if any(event.link == name for event in scenario.events):
        return True
    for side in (0, 1):
        if any(_value(link, side, key) for key in ("rate", "delay")):
            return True
        if any(_impairment(link, side, key) is not None for key in _IMPAIRMENTS):
            return True
    return False


def side_events(scenario: Scenario, link: str, side: int) -> list[Event]:
    """The events of one direction of a link in order of time."""
    mine = [e for e in scenario.events if e.link == link and side in directions(e.direction)]
    return sorted(mine, key=lambda e: e.at)


def loses_frames(event: Event) -> bool:
    """Whether the event is (or brings) a stretch in which the channel drops everything."""
    if event.handoff is not None:
        return event.handoff.inflight == "drop" and event.handoff.gap > 0
    return event.outage is not None and event.mode == "drop"


def holds_frames(event: Event) -> bool:
    """Whether the event stops the queue's service for a while."""
    if event.handoff is not None:
        return event.handoff.inflight == "hold" and event.handoff.gap > 0
    return event.outage is not None and event.mode == "hold"


def _rate_place(name: str, link: Link, side: int, near: str) -> tuple[str, str]:
    """Namespace and device of the rate stage."""
    if link.queue == "wire":
        return near, "wire"
    return link.between[0 if link.queue == "shared" else side], name


def _stage(scenario: Scenario, name: str, link: Link, side: int, index: int) -> Stage:
    near, far = (f"w{name}a", f"w{name}b") if side == 0 else (f"w{name}b", f"w{name}a")
    events = side_events(scenario, name, side)
    law = {key: _impairment(link, side, key) for key in _IMPAIRMENTS}
    lossy = any(law[key] is not None for key in ("ber", "loss", "gilbert", "drop"))
    channel = lossy or any(loses_frames(event) for event in events)
    label = f"{name}-{'ab' if side == 0 else 'ba'}"
    rate = _value(link, side, "rate")
    src, dst = link.between if side == 0 else link.between[::-1]
    pkts, size = _buffer(scenario, name, link, side)
    rate_ns, rate_dev = _rate_place(name, link, side, near)
    qdisc = str(_value(link, side, "qdisc") or "droptail")
    return Stage(
        name=label, link=name, side=side, src=src, dst=dst,
        rate_bps=None if rate is None else _int(rate),
        delay_us=_int(_value(link, side, "delay")),
        buffer_pkts=pkts, buffer_bytes=size, qdisc=qdisc,
        ecn=bool(_value(link, side, "ecn")),
        ber=_float(law["ber"]), loss=_float(law["loss"]),
        gilbert=law["gilbert"] if isinstance(law["gilbert"], GilbertModel) else None,
        duplicate=_float(law["duplicate"]), reorder=_float(law["reorder"]),
        corrupt=_float(law["corrupt"]),
        drop=tuple(law["drop"]) if isinstance(law["drop"], list) else (),
        min_len=_int(_value(link, side, "min_len")),
        hold=any(holds_frames(event) for event in events),
        rate_ns=rate_ns, rate_dev=rate_dev, delay_ns=far, delay_dev="host",
        index=index, channel=label if channel else None,
        detach=scenario.nodes[src].role == "host",
        queue=link.queue, frame_us=_int(_value(link, side, "frame_time")),
    )  # fmt: skip


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _buffer(scenario: Scenario, name: str, link: Link, side: int) -> tuple[int | None, int | None]:
    """(packets, bytes) of the queue; one of them is None, both when there is no rate."""
    rate = _value(link, side, "rate")
    if not isinstance(rate, int):
        return None, None
    chosen = _value(link, side, "buffer")
    buffer = chosen if isinstance(chosen, Buffer) else DEFAULT_BUFFER
    if buffer.kind == "bytes":
        return None, int(buffer.value)
    if buffer.kind == "pkt":
        return int(buffer.value), None
    bdp = rate * _crossing_rtt_us(scenario, name, side) / 8e6
    return max(1, math.ceil(buffer.value * bdp / FULL_FRAME_BYTES)), None


def _crossing_rtt_us(scenario: Scenario, name: str, side: int) -> int:
    """RTT of the first flow whose data crosses this direction, else of any flow over the link."""
    best: int | None = None
    for flow in scenario.flows:
        there = shortest_path(scenario, flow.from_, flow.to)
        back = shortest_path(scenario, flow.to, flow.from_)
        delays = [_int(_value(scenario.links[n], s, "delay")) for n, s in there + back]
        if (name, side) in there:
            return sum(delays)
        if best is None and (name, side) in back:
            best = sum(delays)
    if best is None:
        raise AirlabError(
            f"{scenario.source}: links.{name}.buffer: no flow crosses the link, so BDP has no "
            "meaning; give packets or bytes"
        )
    return best


# Commands ------------------------------------------------------------------------------------


def rate_words(stage: Stage, rate_bps: int | None = None) -> str:
    """The complete kind and parameters of the rate stage's root qdisc or htb class."""
    rate = rate_bps or stage.rate_bps
    if stage.kind == "netem":
        return f"netem rate {rate}bit limit {stage.buffer_pkts}"
    if stage.kind == "tbf":
        return f"tbf rate {rate}bit burst {FULL_FRAME_BYTES} limit {stage.queue_bytes}"
    if stage.kind == "plug":
        return f"plug limit {stage.queue_bytes}"
    return _htb_words(rate or 0, rate or 0, stage.frame_bytes)


def _htb_words(rate: int, ceil: int, more_bytes: int) -> str:
    frame = FULL_FRAME_BYTES
    words = f"htb rate {rate}bit ceil {ceil}bit burst {frame} cburst {frame} quantum {frame}"
    return f"{words} overhead {more_bytes}" if more_bytes else words


def delay_words(stage: Stage, delay_us: int | None = None, seed: int | None = None) -> str:
    """netem's complete parameters; with a seed the scenario's duplicates, reordering, corruption.

    Every change states every parameter: netem keeps some and resets others of what is left out.
    """
    delay = stage.delay_us if delay_us is None else delay_us
    words = [f"netem delay {delay}us limit {DELAY_LIMIT_PKTS}"]
    if stage.has_extras:
        on = seed is not None
        for key in NETEM_EXTRAS:
            share = getattr(stage, key) if on else 0.0
            if key != "reorder" or share:
                words.append(f"{key} {share * 100:.9g}%")
        words += [f"seed {seed}"] if on else []
    return " ".join(words)


def needs_delay(stage: Stage, scenario: Scenario) -> bool:
    """Whether the direction has a netem for delay or what netem does besides."""
    changes = (
        e.delay is not None or (e.handoff is not None and e.handoff.delay is not None)
        for e in side_events(scenario, stage.link, stage.side)
    )
    return bool(stage.delay_us) or stage.has_extras or any(changes)


def _aqm_words(stage: Stage) -> str:
    pkts = stage.buffer_pkts or 100
    ecn = " ecn" if stage.ecn else ""
    if stage.qdisc == "droptail":
        return f"pfifo limit {pkts}"
    if stage.qdisc == "codel":
        return f"codel limit {pkts}{ecn or ' noecn'}"
    if stage.qdisc == "fq_codel":
        return f"fq_codel limit {pkts} flows 1024 quantum {FULL_FRAME_BYTES}{ecn or ' noecn'}"
    if stage.qdisc == "fq":
        return f"fq limit {pkts} flow_limit {pkts}"
    if stage.qdisc == "cake":
        # Its own shaper: without a rate it serves its tins in turn, without priority.
        rtt_us = max(CAKE_RTT_US, 2 * stage.delay_us)
        return (
            f"cake bandwidth {stage.rate_bps}bit diffserv4 rtt {rtt_us}us "
            f"memlimit {pkts * CAKE_FRAME_BYTES}"
        )
    frame = FULL_FRAME_BYTES
    low, high = max(1, pkts // 6), max(2, pkts // 2)
    burst = (2 * low + high) // 3 + 1
    return (
        f"red limit {pkts * frame} min {low * frame} max {high * frame} avpkt {frame} "
        f"burst {burst} bandwidth {stage.rate_bps}bit probability 0.02{ecn}"
    )


def _low_priority_match(family: int) -> str:
    """Classic BPF at the Ethernet header that matches :data:`LOW_DSCP`, as ``tc`` reads it."""
    # IPv4: the second byte, less its two bits of ECN.  IPv6: DSCP lies across the first two bytes.
    load, mask, want = (48, 0xFC, LOW_DSCP << 2) if family == 4 else (40, 0x0FC0, LOW_DSCP << 6)
    at = 15 if family == 4 else 14
    code = [
        (load, 0, 0, at),
        (84, 0, 0, mask),
        (21, 0, 1, want),
        (6, 0, 0, 2**32 - 1),
        (6, 0, 0, 0),
    ]
    return ",".join([str(len(code)), *(" ".join(map(str, one)) for one in code)])


def _prio_commands(stage: Stage, family: int) -> list[str]:
    """Two strict bands below the rate stage's class."""
    dev, leaf = stage.rate_dev, stage.leaf_handle
    first = " ".join(["0"] * 16)
    return [
        f"qdisc add dev {dev} parent {stage.rate_handle}1 handle {leaf} prio bands 2 "
        f"priomap {first}",
        f"qdisc add dev {dev} parent {leaf}1 pfifo limit {stage.buffer_pkts or 100}",
        f"qdisc add dev {dev} parent {leaf}2 pfifo limit {LOW_BAND_PKTS}",
        f"filter add dev {dev} parent {leaf} protocol all prio 1 bpf bytecode "
        f'"{_low_priority_match(family)}" classid {leaf}2',
    ]


def rate_commands(stage: Stage, family: int = 4) -> list[str]:
    """``tc`` lines (without ``tc``) that make the rate stage."""
    dev, root, leaf = stage.rate_dev, stage.rate_handle, stage.leaf_handle
    if stage.kind == "none":
        return []
    if stage.queue == "shared":
        return _shared_commands(stage)
    if stage.kind == "htb":
        lines = [
            f"qdisc add dev {dev} root handle {root} htb default 1",
            f"class add dev {dev} parent {root} classid {root}1 {rate_words(stage)}",
        ]
        if stage.qdisc == "prio":
            return lines + _prio_commands(stage, family)
        return [*lines, f"qdisc add dev {dev} parent {root}1 handle {leaf} {_aqm_words(stage)}"]
    lines = [f"qdisc add dev {dev} root handle {root} {rate_words(stage)}"]
    if stage.kind == "tbf" and stage.hold:
        lines.append(
            f"qdisc add dev {dev} parent {root}1 handle {leaf} plug limit {stage.queue_bytes}"
        )
    if stage.hold:
        lines.append(plug_words(stage, "release_indefinite"))
    return lines


def _shared_commands(stage: Stage) -> list[str]:
    """The medium (made with the forward side), and one direction's class and queue on it."""
    dev, root, rate = stage.rate_dev, stage.rate_handle, stage.rate_bps or 0
    mine = f"{root}{stage.side + 2}"
    medium = [
        f"qdisc add dev {dev} root handle {root} htb default 2",
        f"class add dev {dev} parent {root} classid {root}1 {rate_words(stage)}",
    ]
    share = _htb_words(BORROWED_BPS, rate, stage.frame_bytes)
    return [
        *(medium if stage.side == 0 else []),
        f"class add dev {dev} parent {root}1 classid {mine} {share}",
        f"qdisc add dev {dev} parent {mine} handle {stage.leaf_handle} {_aqm_words(stage)}",
    ]


def second_device(link: str) -> str:
    """Where the other node's frames come to a shared medium."""
    return f"{link}m"


def _to_first(mac: str) -> str:
    """A classic BPF program that holds for frames to this address, by its last two bytes."""
    last = int("".join(mac.split(":")[-2:]), 16)
    return f"bpf bytecode '4,40 0 0 4,21 0 1 {last},6 0 0 4294967295,6 0 0 0'"


def _own_device_tc(topology: Topology, node: str) -> list[str]:
    """tc lines in a node's namespace for the queues on its own devices."""
    lines: list[str] = []
    for stage in topology.stages.values():
        if stage.queue == "wire" or stage.rate_ns != node or stage.rate_bps is None:
            continue
        lines += rate_commands(stage)
        if stage.queue == "shared" and stage.side == 1:
            dev, root = stage.rate_dev, stage.rate_handle
            match = _to_first(topology.ends[node, stage.link].mac)
            lines += [
                f"filter add dev {dev} parent {root} {match} flowid {root}{stage.side + 2}",
                *_redirect(second_device(stage.link), dev, detach=False),
            ]
    return lines


def plug_words(stage: Stage, action: str) -> str:
    """The ``tc`` words that block or release a holding stage."""
    if stage.kind == "plug":
        place = f"root handle {stage.rate_handle}"
    else:
        place = f"parent {stage.rate_handle}1 handle {stage.leaf_handle}"
    return f"qdisc change dev {stage.rate_dev} {place} plug {action}"


def _redirect(dev: str, to: str, detach: bool) -> list[str]:
    """Forward at layer 2 what arrives at ``dev``.

    With ``detach`` a copy goes on and the original ends here, which frees the sender's socket from
    it at once, as a wire does.  Without it the sender would feel a token bucket's queue through
    TCP small queues and never fill it; netem detaches frames by itself.
    """
    action = f"mirror dev {to} trap" if detach else f"redirect dev {to}"
    return [
        f"qdisc add dev {dev} clsact",
        f"filter add dev {dev} ingress matchall action mirred egress {action}",
    ]


def _wire_tc(topology: Topology, link: str, side: int) -> list[str]:
    """tc lines for the wire namespace at one end of a link."""
    out, back = topology.stages[link, side], topology.stages[link, 1 - side]
    scenario = topology.scenario
    token = out.detach and (out.kind in ("htb", "tbf", "plug"))
    if out.queue == "shared":
        lines = _shared_tc(topology, link, side)
    elif out.queue == "host":
        lines = _redirect("host", "wire", False) + _redirect("wire", "host", False)
    else:
        lines = _redirect("host", "wire", token) + _redirect("wire", "host", False)
        lines += rate_commands(out, scenario.ip)
    if needs_delay(back, scenario):
        lines.append(f"qdisc add dev host root handle {back.delay_handle} {delay_words(back)}")
    return lines


def _shared_tc(topology: Topology, link: str, side: int) -> list[str]:
    """Wires beside a shared medium, which is at the first node.

    Its second node's frames must leave their sockets (``detach``): the queue is not its own.
    """
    if side == 1:
        detach = topology.stages[link, 1].detach
        return _redirect("host", "wire", detach) + _redirect("wire", "host", False)
    first = topology.ends[topology.scenario.links[link].between[0], link]
    back = "action mirred egress redirect dev host"
    onward = _redirect("host", "wire", False)
    return [
        onward[0],
        f"filter add dev host ingress protocol all prio 1 {_to_first(first.mac)} {back}",
        onward[1].replace("ingress matchall", "ingress protocol all prio 2 matchall"),
        *_redirect("wire", "medium", False),
    ]


def _port(ns: str, dev: str, mac: str, offload: bool = False) -> tuple[str, str]:
    """(name, options) of one end of a veth pair."""
    segments = "" if offload else " gso_max_segs 1"
    return dev, f"netns {ns} address {mac} mtu 1500{segments} numtxqueues 1 numrxqueues 1"


def _veth(one: tuple[str, str], two: tuple[str, str]) -> str:
    return f"link add name {one[0]} {one[1]} type veth peer name {two[0]} {two[1]}"


def _link_commands(topology: Topology) -> list[str]:
    lines: list[str] = []
    nodes = topology.scenario.nodes
    for number, (name, link) in enumerate(topology.scenario.links.items(), 1):
        a, b = (
            _port(node, name, topology.ends[node, name].mac, nodes[node].offload)
            for node in link.between
        )
        if (name, 0) not in topology.stages:
            lines.append(_veth(a, b))
            continue
        wa, wb = f"w{name}a", f"w{name}b"
        mac = [_mac(number, 0x11 + i) for i in range(6)]
        if link.queue == "shared":
            second = _port(link.between[0], second_device(name), mac[4])
            lines.append(_veth(second, _port(wa, "medium", mac[5])))
        lines.append(_veth(a, _port(wa, "host", mac[0])))
        lines.append(_veth(_port(wa, "wire", mac[1]), _port(wb, "wire", mac[2])))
        lines.append(_veth(_port(wb, "host", mac[3]), b))
    return lines


def node_sysctls(topology: Topology, node: str, labels: list[Algorithm]) -> dict[str, str]:
    """All settings of a node's namespace; later ones win: base, algorithm, scenario."""
    scenario = topology.scenario
    values: dict[str, str] = {}
    if scenario.ip == 4:
        values["net.ipv6.conf.all.disable_ipv6"] = "1"
        values["net.ipv6.conf.default.disable_ipv6"] = "1"
    else:
        values["net.ipv6.conf.default.accept_dad"] = "0"
        values["net.ipv6.conf.default.router_solicitations"] = "0"
        values["net.ipv6.conf.default.addr_gen_mode"] = "1"
    spec = scenario.nodes[node]
    if spec.role == "router":
        values["net.ipv4.ip_forward"] = "1"
        if scenario.ip == 6:
            values["net.ipv6.conf.all.forwarding"] = "1"
    else:
        values |= _tcp_sysctls(topology)
    for label in labels:
        values |= dict(label.sysctls)
    return values | {key: str(value) for key, value in spec.sysctl.items()}


def _tcp_sysctls(topology: Topology) -> dict[str, str]:
    room = max(MAX_AUTOTUNE_BYTES, 4 * _largest_bdp(topology))
    return {
        "net.ipv4.tcp_no_metrics_save": "1",
        "net.ipv4.tcp_rmem": f"4096 131072 {room}",
        "net.ipv4.tcp_wmem": f"4096 16384 {room}",
        "net.ipv4.tcp_congestion_control": "cubic",
        "net.ipv4.tcp_ecn": "2",
        "net.ipv4.tcp_sack": "1",
        "net.ipv4.tcp_timestamps": "1",
        "net.ipv4.tcp_window_scaling": "1",
    }


def _largest_bdp(topology: Topology) -> int:
    largest = 0
    for flow in topology.scenario.flows:
        stages = topology.path_stages(flow.from_, flow.to)
        rates = [stage.rate_bps for stage in stages if stage.rate_bps is not None]
        rtt = topology.rtt_us(flow.from_, flow.to)
        for event in topology.scenario.events:
            moved = event.delay or (event.handoff.delay if event.handoff else 0) or 0
            rtt += 2 * moved
        if rates:
            queue = max((s.queue_bytes for s in stages if s.rate_bps is not None), default=0)
            largest = max(largest, min(rates) * rtt // (8 * 10**6) + queue)
    return largest


def route_commands(topology: Topology, node: str) -> list[str]:
    """ip lines for one node: addresses, links up, permanent neighbours, routes to all subnets."""
    scenario = topology.scenario
    mask, dad = (24, "") if scenario.ip == 4 else (64, " nodad")
    spec = scenario.nodes[node]
    quick = "" if spec.delayed_ack else " quickack 1"
    if spec.mss is not None:
        # What the option announces counts the timestamp's 12 bytes, too.
        quick += f" advmss {spec.mss + 12}"
    if spec.initcwnd is not None:
        quick += f" initcwnd {spec.initcwnd}"
    lines = ["link set dev lo up"]
    mine = [(name, link) for name, link in scenario.links.items() if node in link.between]
    for name, link in mine:
        peer = link.between[1] if link.between[0] == node else link.between[0]
        end, other = topology.ends[node, name], topology.ends[peer, name]
        lines.append(f"addr add {end.addr}/{mask}{dad} dev {name}")
        lines.append(f"link set dev {name} up")
        lines.append(f"neigh add {other.addr} lladdr {other.mac} dev {name} nud permanent")
        if quick:
            # The kernel's own route of an IPv6 subnet is told from others by its metric.
            place = f"{_subnet(end.addr, mask)} dev {name}{'' if mask == 24 else ' metric 256'}"
            lines.append(f"route change {place} src {end.addr}{quick}")
    for name, link in scenario.links.items():
        if node in link.between:
            continue
        hop = _next_hop(topology, node, link)
        if hop:
            subnet = _subnet(topology.ends[link.between[0], name].addr, mask)
            lines.append(f"route add {subnet} via {hop}{quick}")
    return lines


def _subnet(addr: str, mask: int) -> str:
    """The subnet of one of our addresses; the host part is one digit."""
    return f"{addr[:-1]}0/{mask}" if mask == 24 else f"{addr[:-1]}/{mask}"


def _next_hop(topology: Topology, node: str, link: Link) -> str | None:
    ways: list[list[tuple[str, int]]] = []
    for end in link.between:
        try:
            ways.append(topology.path(node, end))
        except AirlabError:
            return None
    name, side = min(ways, key=len)[0]
    peer = topology.scenario.links[name].between[1 - side]
    return topology.ends[peer, name].addr


def _here(command: str, lines: list[str]) -> list[str]:
    return [f"{command} <<'EOF'", *lines, "EOF"]


def _sysctl_command(ns: str | None, values: dict[str, str]) -> str:
    words = [f"'{k}={v}'" if " " in v else f"{k}={v}" for k, v in values.items()]
    prefix = f"ip netns exec {ns} " if ns else ""
    return " \\\n    ".join([f"{prefix}sysctl -q -w", *words])


def setup_script(
    topology: Topology, algorithms: dict[str, list[Algorithm]], core_bytes: int = 0
) -> str:
    """The commands that build the topology, for a POSIX shell.

    ``algorithms`` lists, for each node, those whose flows it sends.  ``core_bytes`` raises the
    host-wide limit for explicit socket buffers when it is above the kernel's default.
    """
    scenario = topology.scenario
    lines = ["#!/bin/sh", f"# {scenario.name}: {scenario.title}", "set -e", ""]
    first = [f"netns add {ns}" for ns in topology.namespaces]
    lines += ["# one namespace a node, two for the wires of each emulated link"]
    lines += [*_here("ip -batch -", first), ""]
    if core_bytes > 212_992:
        limits = {f"net.core.{k}mem_max": str(core_bytes) for k in ("r", "w")}
        lines += [_sysctl_command(None, limits), ""]
    for node in scenario.nodes:
        values = node_sysctls(topology, node, algorithms.get(node, []))
        lines += [_sysctl_command(node, values)]
    lines += ["", "# devices: one packet a segment (gso_max_segs 1), explicit addresses"]
    lines += _here("ip -batch -", _link_commands(topology))
    for node, spec in scenario.nodes.items():
        lines += _here(f"ip -n {node} -batch -", route_commands(topology, node))
        mine = [name for name, link in scenario.links.items() if node in link.between]
        if spec.qdisc != "noqueue":
            qdiscs = [f"qdisc add dev {name} root handle 1: {spec.qdisc}" for name in mine]
            lines += _here(f"tc -n {node} -batch -", qdiscs)
        own = _own_device_tc(topology, node)
        if own:
            seconds = [second_device(n) for n in mine if _is_medium(topology, node, n)]
            lines += _here(f"ip -n {node} -batch -", _wire_up(seconds)) if seconds else []
            lines += _here(f"tc -n {node} -batch -", own)
        if spec.offload:
            lines += [f"ip netns exec {node} ethtool -K {name} tso off" for name in mine]
    for name in dict.fromkeys(link for link, _ in topology.stages):
        lines += ["", f"# link {name}"]
        for side, ns in enumerate((f"w{name}a", f"w{name}b")):
            medium = ["medium"] if side == 0 and topology.stages[name, 0].queue == "shared" else []
            lines += _here(f"ip -n {ns} -batch -", _wire_up(["host", "wire", *medium]))
            lines += _here(f"tc -n {ns} -batch -", _wire_tc(topology, name, side))
    return "\n".join(lines) + "\n"


def _is_medium(topology: Topology, node: str, link: str) -> bool:
    """Whether the medium of a shared link is at this node."""
    stage = topology.stages.get((link, 0))
    return stage is not None and stage.queue == "shared" and stage.rate_ns == node


def _wire_up(devices: list[str]) -> list[str]:
    """Bring devices up without any address, so that they never speak by themselves."""
    return [
        line for dev in devices
        for line in (f"link set dev {dev} addrgenmode none", f"link set dev {dev} up")
    ]  # fmt: skip


def netem_seed(seed: int, stage: Stage, change: int) -> int:
    """netem's seed for the ``change``-th complete parameter set of a direction."""
    return derive_seed(seed, "netem", stage.name, change)


_KIND_MODULES = {
    "netem": ("sch_netem",),
    "tbf": ("sch_tbf",),
    "plug": ("sch_plug",),
    "htb": ("sch_htb",),
    "none": (),
}
_AQM_MODULES = {
    "codel": ("sch_codel",),
    "fq_codel": (),  # built into Debian's kernels, whose default it is
    "red": ("sch_red",),
    "fq": ("sch_fq",),
    "prio": ("sch_prio", "cls_bpf"),
    "cake": ("sch_cake",),
}


def kernel_modules(topology: Topology) -> tuple[str, ...]:
    """Modules of devices and qdiscs, in the order to load them, each once."""
    names = ["veth"]
    for stage in topology.stages.values():
        names += ["sch_ingress", "cls_matchall", "act_mirred"]
        names += _KIND_MODULES[stage.kind]
        names += ["sch_plug"] if stage.hold else []
        names += ["sch_netem"] if needs_delay(stage, topology.scenario) else []
        names += ["cls_bpf"] if stage.channel or stage.queue == "shared" else []
        if stage.kind == "htb":
            names += _AQM_MODULES.get(stage.qdisc, ())
    for node in topology.scenario.nodes.values():
        if node.qdisc != "noqueue":
            names += _AQM_MODULES[node.qdisc]
    return tuple(dict.fromkeys(names))
