"""From trace events to the tables of a recording, batch by batch.

Events come from tracepoints (fields differ between kernels) or from ccscope's own kprobe events
(system ``ccscope_PID``; ccscope.sources.probes says what they fetch).  The state that lasts from
batch to batch is a few numbers a flow, so memory is bounded by the batch.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ccscope.causes import Evidence, retransmit_kind, why
from ccscope.ftrace import Array, Columns
from ccscope.schema import CA_STATES, TCP_STATES
from ccscope.symbols import Symbols

PROBES = "ccscope"
"""System of our own kprobe events, once the PID is cut off."""

_UNDO_SPAN_NS = 100_000  # an undo and the change it leads to are one call of tcp_ack()
_ENDS_BYTES = 36  # two addresses of 16 bytes, two ports
_MIX = np.random.default_rng(20240229).integers(1 << 62, 1 << 63, 9, dtype=np.uint64) | 1
_MAPPED = np.frombuffer(bytes(10) + b"\xff\xff", dtype=np.uint8)


@dataclass
class FlowState:
    """What must be remembered of a flow from batch to batch."""

    label: str
    info: dict[str, Any]
    una: int | None = None
    una_bytes: int = 0
    ca: str = "Open"
    sack: bool | None = None
    undo_ns: int | None = None


@dataclass
class Assembler:
    """Turns batches of events into tables.

    Args:
        t0_ns: CLOCK_MONOTONIC at the start of the recording.
        symbols: for stacks; empty when they cannot be named.
        wanted: tells from a flow's addresses whether it is selected.
        known: what else is known of a flow by its addresses (algorithm, ``sack``, ...);
            ``label`` names it, else it is f1, f2, ...
    """

    t0_ns: int
    symbols: Symbols = field(default_factory=lambda: Symbols([]))
    wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True
    known: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    flows: dict[bytes, FlowState | None] = field(default_factory=dict)
    made: int = 0

    def info(self) -> dict[str, dict[str, Any]]:
        """The flows seen so far, by label."""
        return {f.label: f.info for f in self.flows.values() if f is not None}

    def tables(self, events: Mapping[str, Columns]) -> dict[str, Columns]:
        """The tables of one batch; events of each type in order of time."""
        stacks = _stacks(events.get("ftrace:kernel_stack"))
        made: dict[str, Columns] = {}
        acks = [
            self._acks(columns, after)
            for name, after in (("tcp:tcp_probe", False), (f"{PROBES}:after", True))
            if len((columns := events.get(name, {})).get("t_ns", ()))
        ]
        if acks:
            made["acks"] = _by_time(acks)
        states = self._states(events, stacks)
        if len(states["t_s"]):
            made["states"] = states
        for name, build in (
            ("tcp:tcp_retransmit_skb", self._retransmits),
            (f"{PROBES}:again", self._retransmits),
            ("sock:inet_sock_set_state", self._life),
        ):
            found = events.get(name)
            if found is not None and len(found["t_ns"]):
                table, rows = build(found, states)
                if len(rows["t_s"]):
                    made[table] = rows
        for name, columns in events.items():
            system, _, event = name.partition(":")
            if system not in ("tcp", "sock", "ftrace", "qdisc", "skb", PROBES):
                rows = self._module_event(columns)
                if len(rows["t_s"]):
                    # Of system j, the event j_abe and the event abe are both j_j_abe.
                    made[f"j_{system}_{event.removeprefix(system + '_')}"] = rows
        return made

    # ---- flows ----

    def flow_of(self, info: Mapping[str, Any]) -> FlowState | None:
        """The flow with these addresses and ports; None when it is not selected."""
        key = b"".join(mapped_address(info[end]) for end in ("src", "dst"))
        return self._flow(key + struct.pack("<HH", info["sport"], info["dport"]))

    def reconsider(self, info: Mapping[str, Any]) -> None:
        """Ask again whether this flow is selected, if it was found not to be."""
        key = b"".join(mapped_address(info[end]) for end in ("src", "dst"))
        key += struct.pack("<HH", info["sport"], info["dport"])
        if key in self.flows and self.flows[key] is None:
            del self.flows[key]

    def forget(self, keep: Container[str]) -> None:
        """Forget all flows but those with these labels."""
        self.flows = {
            key: flow for key, flow in self.flows.items() if flow is not None and flow.label in keep
        }

    def _of_rows(self, columns: Columns) -> list[FlowState | None]:
        """The flow of each row; None where it is not selected."""
        ends = end_points(columns)
        # One number for each row: numpy sorts numbers ten times faster than records.
        hashed = (ends.view("<u4").astype(np.uint64) * _MIX).sum(axis=1, dtype=np.uint64)
        keys, first, inverse = np.unique(hashed, return_index=True, return_inverse=True)
        found: list[FlowState | None] = [None] * len(keys)
        for i in np.argsort(first).tolist():  # labels in the order of appearance
            found[i] = self._flow(ends[first[i]].tobytes())
        return [found[i] for i in inverse.tolist()]

    def _flow(self, key: bytes) -> FlowState | None:
        if key not in self.flows:
            sport, dport = np.frombuffer(key[32:], dtype="<u2").tolist()
            info: dict[str, Any] = {"src": address_text(key[:16]), "dst": address_text(key[16:32])}
            info |= {"sport": sport, "dport": dport}
            info["family"] = 6 if ":" in info["dst"] else 4
            # Without a port it is not yet, or no more, a connection.
            if not (sport and dport and self.wanted(info)):
                self.flows[key] = None
            else:
                self.made += 1
                info |= self.known(info)
                label = str(info.pop("label", f"f{self.made}"))
                self.flows[key] = FlowState(label, info, sack=info.get("sack"))
        return self.flows[key]

    # ---- tables ----

    def _acks(self, columns: Columns, after: bool) -> Columns:
        flows = self._of_rows(columns)
        keep = np.array([f is not None for f in flows], dtype=bool)
        mine = {name: values[keep] for name, values in columns.items()}
        owners = [f for f in flows if f is not None]
        rows = len(owners)
        made: Columns = {
            "t_s": (mine["t_ns"] - self.t0_ns) / 1e9,
            "flow": np.array([f.label for f in owners], dtype=object),
            "phase": np.full(rows, "after" if after else "before", dtype=object),
            "cwnd_segs": mine["snd_cwnd"],
            "ssthresh_segs": mine["ssthresh"],
            "ssthresh_is": np.full(rows, "raw" if after else "current", dtype=object),
            "srtt_us": mine["srtt"] >> 3 if after else mine["srtt"],
            "inflight_bytes": (mine["snd_nxt"] - mine["snd_una"]).astype(np.uint32),
            "una_bytes": _una(owners, mine["snd_una"]),
            "snd_wnd_bytes": mine["snd_wnd"],
        }
        for name, source in _DEEP.items():
            if source in mine:
                made[name] = unlimited_as_null(mine[source]) if source == "pacing" else mine[source]
        if "sack_ok" in mine:
            for flow, sack in zip(owners, mine["sack_ok"].tolist(), strict=True):
                flow.sack = bool(sack & 1)
        return made

    def _states(self, events: Mapping[str, Columns], stacks: tuple[Array, Array]) -> Columns:
        steps: list[tuple[int, int, str, FlowState, dict[str, Any]]] = []
        # The probe on tcp_set_ca_state() says more than the tracepoint in it; never both.
        probe = events.get(f"{PROBES}:ca")
        sources = [("undo", events.get(f"{PROBES}:undo"))]
        if probe is not None:
            sources.append(("ca", probe))
        else:
            sources.append(("ca", events.get("tcp:tcp_cong_state_set")))
        for kind, columns in sources:
            if columns is None or not len(columns["t_ns"]):
                continue
            names = [n for n in (*_COUNTS, "ca_state", "cong_state", "sack_ok") if n in columns]
            for row, flow in enumerate(self._of_rows(columns)):
                if flow is not None:
                    values: dict[str, Any] = {n: int(columns[n][row]) for n in names}
                    place = int(columns["common_at"][row])
                    values["stack"] = _stack_of(stacks, place) if kind == "ca" else None
                    steps.append((int(columns["t_ns"][row]), place, kind, flow, values))
        steps.sort(key=lambda s: s[:2])
        rows: list[tuple[Any, ...]] = []
        for t_ns, _, kind, flow, values in steps:
            if kind == "undo":
                rows += self._late_undo(flow, t_ns)
                flow.undo_ns = flow.undo_ns or t_ns
            else:
                rows += self._change(t_ns, flow, values, probed=f"{PROBES}:undo" in events)
        for flow in {id(s[3]): s[3] for s in steps}.values():
            rows += self._late_undo(flow, None)
        rows.sort(key=lambda r: r[0])
        texts = list(zip(*rows, strict=True)) or [()] * 6
        made = {"t_s": np.array(texts[0], dtype=float)}
        for name, text in zip(_STATE_TEXTS, texts[1:], strict=True):
            made[name] = np.array(text, dtype=object)
        return made

    def _late_undo(self, flow: FlowState, now_ns: int | None) -> list[tuple[Any, ...]]:
        """The row of an undo that did not change the state."""
        then = flow.undo_ns
        if then is None or (now_ns is not None and now_ns - then <= _UNDO_SPAN_NS):
            return []
        flow.undo_ns = None
        proof = "the congestion control's undo_cwnd was called; the state stayed"
        return [((then - self.t0_ns) / 1e9, flow.label, flow.ca, flow.ca, "undo", proof)]

    def _change(
        self, t_ns: int, flow: FlowState, seen: dict[str, Any], *, probed: bool
    ) -> list[tuple[Any, ...]]:
        rows = self._late_undo(flow, t_ns)
        number = seen.get("cong_state", 0)
        entered = CA_STATES[number] if number < len(CA_STATES) else "Open"
        left = CA_STATES[seen["ca_state"]] if seen.get("ca_state", 9) < 5 else flow.ca
        flow.ca = entered
        if "sack_ok" in seen:
            flow.sack = bool(seen["sack_ok"] & 1)
        if left == entered and entered != "Loss":
            return rows
        undo = flow.undo_ns is not None and entered in ("Open", "Disorder") if probed else None
        if undo:
            flow.undo_ns = None
        stack = self.symbols.names(seen["stack"]) if seen["stack"] and len(self.symbols) else None
        counts = " ".join(f"{text} {seen[n]}" for n, text in _COUNTS.items() if n in seen)
        cause, proof = why(left, entered, Evidence(stack, undo, flow.sack, counts))
        return [*rows, ((t_ns - self.t0_ns) / 1e9, flow.label, entered, left, cause, proof)]

    def _retransmits(self, columns: Columns, states: Columns) -> tuple[str, Columns]:
        rows = []
        tcp, seq = columns.get("state"), columns.get("seq")
        for row, flow in enumerate(self._of_rows(columns)):
            if flow is None:
                continue
            t_s = (int(columns["t_ns"][row]) - self.t0_ns) / 1e9
            tcp_state = _tcp_state(int(tcp[row])) if tcp is not None else ""
            first = np.nan
            if seq is not None and flow.una is not None:
                first = _relative(flow, int(seq[row]))
            rows.append((t_s, flow.label, tcp_state, first))
        kinds = _states_at(states, [r[:2] for r in rows], self._ca_before(states))
        return "retransmits", {
            "t_s": np.array([r[0] for r in rows], dtype=float),
            "flow": np.array([r[1] for r in rows], dtype=object),
            "kind": np.array(
                [retransmit_kind(ca, r[2]) for ca, r in zip(kinds, rows, strict=True)], dtype=object
            ),
            "seq_bytes": np.array([r[3] for r in rows], dtype=float),
        }

    def _ca_before(self, states: Columns) -> dict[str, str]:
        """Each flow's CA state at the start of the batch."""
        made = {f.label: f.ca for f in self.flows.values() if f is not None}
        for flow, left in zip(states["flow"][::-1], states["left"][::-1], strict=True):
            made[flow] = left
        return made

    def _life(self, columns: Columns, _: Columns) -> tuple[str, Columns]:
        rows = []
        mine = columns["protocol"] == 6
        chosen = {name: values[mine] for name, values in columns.items()}
        if mine.any():
            for row, flow in enumerate(self._of_rows(chosen)):
                old, new = (_tcp_state(int(chosen[n][row])) for n in ("oldstate", "newstate"))
                if flow is None or "LISTEN" in (old, new):
                    continue
                if new in ("SYN_SENT", "SYN_RECV"):  # the same addresses, another connection
                    flow.una, flow.ca, flow.undo_ns = None, "Open", None
                rows.append(((int(chosen["t_ns"][row]) - self.t0_ns) / 1e9, flow.label, old, new))
        return "life", {
            "t_s": np.array([r[0] for r in rows], dtype=float),
            "flow": np.array([r[1] for r in rows], dtype=object),
            "event": np.full(len(rows), "state", dtype=object),
            "old": np.array([r[2] for r in rows], dtype=object),
            "new": np.array([r[3] for r in rows], dtype=object),
        }

    def _module_event(self, columns: Columns) -> Columns:
        """A module's event with all its fields; ``flow`` by its ports, where it has them."""
        made: Columns = {"t_s": (columns["t_ns"] - self.t0_ns) / 1e9}
        if {"sport", "dport"} <= columns.keys():
            by_ports = {(f["sport"], f["dport"]): n for n, f in self.info().items()}
            pairs = zip(columns["sport"].tolist(), columns["dport"].tolist(), strict=True)
            made["flow"] = np.array([by_ports.get(p) for p in pairs], dtype=object)
        for name, values in columns.items():
            if name != "t_ns" and not name.startswith("common_"):
                made[name] = values
        return made


_STATE_TEXTS = ("flow", "state", "left", "cause", "evidence")
_COUNTS = {"sacked": "sacked", "lost": "lost", "retrans": "retransmitted", "reord": "reordering"}
# Columns of acks that only the probe after the ACK (or a newer tracepoint) has.
_DEEP = {
    "rcv_wnd_bytes": "rcv_wnd",
    "min_rtt_us": "min_rtt",
    "pacing_rate_Bps": "pacing",
    "unacked_segs": "packets_out",
    "sacked_segs": "sacked",
    "delivered_segs": "delivered",
    "lost_segs": "lost",
    "retrans_segs": "retrans",
    "ca_state": "ca_state",
}


def _tcp_state(number: int) -> str:
    return TCP_STATES[number] if number < len(TCP_STATES) else str(number)


def _by_time(parts: list[Columns]) -> Columns:
    names = set.intersection(*(set(p) for p in parts)) if len(parts) > 1 else set(parts[0])
    for part in parts:
        for name in {n for p in parts for n in p} - names:
            part.setdefault(name, np.full(len(part["t_s"]), np.nan))
    joined = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    order = np.argsort(joined["t_s"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def _una(owners: list[FlowState], una: Array) -> Array:
    """Bytes acknowledged since each flow's first ACK, across the 2**32 wrap."""
    made = np.zeros(len(owners), dtype=np.int64)
    for row, (flow, value) in enumerate(zip(owners, una.tolist(), strict=True)):
        if flow.una is None:
            flow.una = flow.info["una0_seq"] = value
            flow.una_bytes = 0
        flow.una_bytes = _relative(flow, value)
        flow.una = value
        made[row] = flow.una_bytes
    return made


def _relative(flow: FlowState, seq: int) -> int:
    """A sequence number near snd_una as bytes since the flow's first ACK."""
    assert flow.una is not None
    return flow.una_bytes + (seq - flow.una + (1 << 31)) % (1 << 32) - (1 << 31)


def _states_at(
    states: Columns, where: list[tuple[float, str]], first: Mapping[str, str]
) -> list[str]:
    """The CA state of each (time, flow)."""
    places = {f: np.flatnonzero(states["flow"] == f) for f in {flow for _, flow in where}}
    made = []
    for t_s, flow in where:
        mine = places[flow]
        at = int(np.searchsorted(states["t_s"][mine], t_s, side="right"))
        made.append(str(states["state"][mine[at - 1]]) if at else first.get(flow, "Open"))
    return made


def _stacks(columns: Columns | None) -> tuple[Array, Array]:
    if columns is None or not len(columns["t_ns"]):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=object)
    order = np.argsort(columns["common_at"], kind="stable")
    return columns["common_at"][order], columns["caller"][order]


def _stack_of(stacks: tuple[Array, Array], place: int) -> tuple[int, ...] | None:
    """The stack behind an event: the next event of its CPU, or the one after an interrupt's."""
    at = int(np.searchsorted(stacks[0], place))
    if at < len(stacks[0]) and stacks[0][at] - place <= 2:
        found: tuple[int, ...] = stacks[1][at]
        return found
    return None


def unlimited_as_null(rates: Array) -> Array:
    """Rates as floats; the kernel's all ones for "no limit" become NaN."""
    return np.where(rates >= np.iinfo(np.uint64).max - 1024, np.nan, rates.astype(float))


# ---- addresses ----


def end_points(columns: Columns) -> Array:
    """Each row's local and remote address (IPv6 or mapped) and ports, as 36 bytes."""
    rows = len(columns["t_ns"])
    made = np.zeros((rows, _ENDS_BYTES), dtype=np.uint8)
    made[:, :16] = _addresses(columns, "saddr", rows)
    made[:, 16:32] = _addresses(columns, "daddr", rows)
    dport = columns.get("dport")
    if dport is None:  # our own probes fetch it byte by byte, it is in network order
        dport = columns["dporthi"].astype("<u2") << 8 | columns["dportlo"]
    ports = np.stack([columns["sport"], dport], axis=1).astype("<u2")
    made[:, 32:] = ports.view(np.uint8).reshape(rows, 4)
    return made


def _addresses(columns: Columns, name: str, rows: int) -> Array:
    mapped = np.zeros((rows, 16), dtype=np.uint8)
    mapped[:, :12] = _MAPPED
    if f"{name}4" in columns:  # our own probes: network order in machine words
        mapped[:, 12:] = columns[f"{name}4"].astype("<u4").view(np.uint8).reshape(rows, 4)
        halves = [columns[f"{name}6{half}"].astype("<u8") for half in "ab"]
        six = np.stack(halves, axis=1).view(np.uint8).reshape(rows, 16)
        mapped = np.where((columns["family"] == 10)[:, None], six, mapped)
    elif f"{name}_v6" in columns:  # filled by the kernel for both families
        mapped = np.ascontiguousarray(columns[f"{name}_v6"])
    else:  # tcp_probe: a sockaddr_in (address at byte 4) or sockaddr_in6 (at byte 8)
        sockaddr = columns[name]
        mapped[:, 12:] = sockaddr[:, 4:8]
        six = sockaddr[:, 8:24]
        mapped = np.where((sockaddr[:, 0] == 10)[:, None], six, mapped)
    return mapped


def mapped_address(address: str) -> bytes:
    """An address as 16 bytes, IPv4 in its IPv6-mapped form."""
    parsed = ipaddress.ip_address(address)
    return parsed.packed if parsed.version == 6 else bytes(_MAPPED) + parsed.packed


def address_text(data: bytes) -> str:
    """An address of 4 or 16 bytes as text; the IPv6-mapped form as IPv4."""
    if len(data) == 4:
        return str(ipaddress.IPv4Address(data))
    if data[:12] == bytes(_MAPPED):
        return str(ipaddress.IPv4Address(data[12:]))
    return str(ipaddress.IPv6Address(data))
