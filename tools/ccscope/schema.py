"""The list of names: tables and columns of a recording as data.

Each column has an Arrow type, a unit, a meaning and the sources that can give it.  A column
that a source cannot give is null in the file; readers get NaN (numbers) or None (texts).
airlab's cell folders use the same names, so their columns are described here too.

Only the standard library is imported: the recorder runs where pyarrow does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FORMAT = "ccscope-recording"
VERSION = 1

CA_STATES = ("Open", "Disorder", "CWR", "Recovery", "Loss")
TCP_STATES = (
    *("", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE"),
    *("CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"),
)
# A slow-start threshold of "none yet", as the kernel writes it.
SSTHRESH_NONE = 0x7FFFFFFF

# Why a state was entered or left; ccscope.causes has the evidence each one needs.
CAUSES = {
    "local": "the sender's own host dropped a segment or refused it (Local Congestion)",
    "ecn": "the receiver echoed a congestion mark (ECE)",
    "tlp": "a tail loss probe repaired the loss of the last segment",
    "cwr": "the window was reduced without a loss; the source cannot tell why",
    "dupack": "recovery after duplicate ACKs, without SACK",
    "sack": "recovery after selective acknowledgements",
    "rack": "recovery because RACK's reordering timer ran out",
    "recovery": "recovery of lost segments; the source cannot tell what showed the loss",
    "rto": "the retransmission timer ran out (Loss)",
    "mtu": "segments were too large for the path and are sent again",
    "disorder": "a duplicate ACK, a SACK or an ECN echo that is not yet taken for a loss",
    "undo": "the reduction was undone: the retransmission was not needed (spurious)",
    "done": "all that was outstanding when the state was entered has been acknowledged",
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: also says the unit, by its ending.
        type: Arrow type: ``float64``, ``int64``, ``uint32``, ... or ``text``.
        unit: ``s``, ``us``, ``B``, ``segments``, ``B/s``, ``bit/s``, ``packets`` or empty.
        about: the meaning, in one sentence.
        sources: sources that can fill it; empty when every source of the table can.
    """

    name: str
    type: str
    unit: str
    about: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of a recording; ``key`` is the column that names what a row belongs to."""

    name: str
    about: str
    columns: tuple[Column, ...]
    key: str = "flow"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(c.name for c in self.columns)


_T = Column("t_s", "float64", "s", "time since the start of the recording (or experiment)")
_FLOW = Column("flow", "text", "", "label of the flow")
_IN_ACKS = "; in acks: before or after the ACK is processed, as `phase` says"
_DEEP = ("kprobe", "bpf", "sockdiag")
_POLL = ("sockdiag", "sslog")
_PROBES = ("kprobe", "bpf")
_STEPS = "state, reset-sent, reset-received, destroyed, retransmit-fail"

_CWND = Column("cwnd_segs", "uint32", "segments", f"congestion window{_IN_ACKS}")
_SSTHRESH = Column(
    *("ssthresh_segs", "uint32", "segments"),
    "slow-start threshold; 2147483647 is 'none yet'. In acks `ssthresh_is` says which: current is "
    "tcp_current_ssthresh(), which outside CWR and Recovery is max(ssthresh, 3/4 cwnd), before the "
    "ACK; raw is the socket's snd_ssthresh",
)
_SRTT = Column("srtt_us", "uint32", "us", f"smoothed round-trip time{_IN_ACKS}")
_MIN_RTT = Column("min_rtt_us", "uint32", "us", "lowest round-trip time of the window", _DEEP)
_SND_WND = Column("snd_wnd_bytes", "uint32", "B", f"window the receiver offers{_IN_ACKS}")
_RCV_WND = Column("rcv_wnd_bytes", "uint32", "B", "window offered to the peer")
_PACING = Column(
    "pacing_rate_Bps", "uint64", "B/s", "rate at which segments are paced; null: no limit", _DEEP
)
_DELIVERED = Column("delivered_segs", "uint32", "segments", "segments delivered so far", _DEEP)
_LOST = Column("lost_segs", "uint32", "segments", "segments taken for lost, now", _DEEP)
_RETRANS = Column(
    *("retrans_segs", "uint32", "segments", "retransmitted segments in flight, now", _DEEP)
)
_UNACKED = Column("unacked_segs", "uint32", "segments", "segments sent and not yet acked", _DEEP)
_SACKED = Column("sacked_segs", "uint32", "segments", "segments acked selectively, now", _DEEP)
_CA = Column("ca_state", "uint8", "", "CA state by number: " + ", ".join(CA_STATES), _DEEP)

_ACKS = Table(
    "acks",
    "one row for each segment that the sender's socket received in ESTABLISHED",
    (
        *(_T, _FLOW),
        Column("phase", "text", "", "before or after: whether the ACK is already in the numbers"),
        *(_CWND, _SSTHRESH),
        Column("ssthresh_is", "text", "", "current or raw: which threshold ssthresh_segs is"),
        *(_SRTT, _MIN_RTT),
        Column("inflight_bytes", "uint32", "B", f"snd_nxt - snd_una{_IN_ACKS}"),
        Column(
            *("una_bytes", "int64", "B"),
            f"snd_una relative to the first ACK of the connection{_IN_ACKS}",
        ),
        *(_SND_WND, _RCV_WND, _PACING, _UNACKED, _SACKED, _DELIVERED, _LOST, _RETRANS, _CA),
    ),
)
_STATES = Table(
    "states",
    "one row for each change of the CA state",
    (
        *(_T, _FLOW),
        Column("state", "text", "", "CA state entered: " + ", ".join(CA_STATES)),
        Column("left", "text", "", "CA state left"),
        Column("cause", "text", "", "why: " + "; ".join(f"{k}: {v}" for k, v in CAUSES.items())),
        Column("evidence", "text", "", "what the cause was concluded from"),
    ),
)
_RETRANSMITS = Table(
    "retransmits",
    "one row for each segment that was sent again",
    (
        *(_T, _FLOW),
        Column("kind", "text", "", "fast, rto or tlp: what sent it; null where not known"),
        Column(
            "seq_bytes", "int64", "B", "first byte, relative as una_bytes is", ("kprobe", "bpf")
        ),
    ),
)
_LIFE = Table(
    "life",
    "one row for each step in a connection's life",
    (
        *(_T, _FLOW),
        Column(
            "event", "text", "", "state, reset-sent, reset-received, destroyed, retransmit-fail"
        ),
        Column("old", "text", "", "TCP state left, for event state"),
        Column("new", "text", "", "TCP state entered, for event state"),
    ),
)
_SAMPLES = Table(
    "samples",
    "one row for each poll of a socket (TCP_INFO)",
    (
        *(_T, _FLOW, _CWND, _SSTHRESH, _SRTT),
        Column("rttvar_us", "uint32", "us", "deviation of the round-trip time"),
        _MIN_RTT,
        *(_UNACKED, _SACKED, _LOST, _RETRANS),
        Column("retrans_total", "uint32", "segments", "segments sent again so far"),
        _CA,
        Column("delivery_rate_Bps", "uint64", "B/s", "most recent delivery rate"),
        Column("bytes_acked", "uint64", "B", "bytes acknowledged so far"),
        Column("bytes_sent", "uint64", "B", "bytes sent so far, retransmissions included", _POLL),
        Column("bytes_retrans", "uint64", "B", "bytes sent again so far", _POLL),
        Column("rto_us", "uint32", "us", "retransmission time-out"),
        Column("mss_bytes", "uint32", "B", "maximum segment size towards the peer"),
        *(_SND_WND, _RCV_WND, _PACING, _DELIVERED),
        Column("delivered_ce_segs", "uint32", "segments", "segments delivered with a mark so far"),
        Column("notsent_bytes", "uint32", "B", "bytes in the send buffer not yet sent"),
        Column("busy_us", "uint64", "us", "time so far with data to send"),
        Column("rwnd_limited_us", "uint64", "us", "time so far limited by the receive window"),
        Column("sndbuf_limited_us", "uint64", "us", "time so far limited by the send buffer"),
        Column("wmem_bytes", "uint32", "B", "memory that the send queue takes", _POLL),
        Column("sndbuf_bytes", "uint32", "B", "limit of wmem_bytes: the send buffer", _POLL),
        Column("app_limited", "uint8", "", "1 when the delivery rate was limited by the program"),
        Column("reord_seen", "uint32", "", "reorderings seen so far"),
        Column("dsack_dups", "uint32", "", "segments the peer received twice so far (DSACK)"),
        Column("snd_wscale", "uint8", "", "window scale the peer uses"),
        Column("cc", "text", "", "congestion-control algorithm"),
    ),
)
_PACKETS = Table(
    "packets",
    "one row for each TCP packet of a capture",
    (
        *(_T, _FLOW),
        Column("direction", "text", "", "out: from the flow's source; in: towards it"),
        Column("seq_bytes", "int64", "B", "sequence number relative to the sender's first one"),
        Column("ack_bytes", "int64", "B", "ACK number relative to the acked side's first one"),
        Column("len_bytes", "uint32", "B", "payload"),
        Column("flags", "text", "", "FIN SYN RST PSH ACK URG ECE CWR as the letters FSRPAUEC"),
        Column("window_bytes", "uint32", "B", "window offered, scaled when the handshake was seen"),
        Column("sack", "text", "", "SACK blocks start-end,... relative as ack_bytes is"),
        Column("dsack", "uint8", "", "1 when the first SACK block is a duplicate SACK"),
        Column("ecn", "uint8", "", "ECN field of the IP header: 0 not, 1 ECT(1), 2 ECT(0), 3 CE"),
        Column("ts_val", "uint32", "", "timestamp option: value"),
        Column("ts_ecr", "uint32", "", "timestamp option: echo"),
        Column("repeated", "uint8", "", "1: data with nothing above the highest byte seen before"),
        Column("frame", "int64", "", "number of the frame in the capture, from 1"),
    ),
)
_GOODPUT = Table(
    "goodput",
    "bytes that arrived, by bins of equal length",
    (
        *(_T, _FLOW),
        Column("bytes", "int64", "B", "payload bytes received in the bin that starts at t_s"),
        Column("goodput_bps", "float64", "bit/s", "payload received in the bin over its length"),
    ),
)
_QUEUE = Table(
    "queue",
    "one row for each change of a queue (lab only)",
    (
        _T,
        Column("stage", "text", "", "name of the link direction"),
        Column("packets", "int32", "packets", "packets in the stage's queue after this event"),
    ),
    key="stage",
)

TABLES: dict[str, Table] = {
    t.name: t for t in (_ACKS, _STATES, _RETRANSMITS, _LIFE, _SAMPLES, _PACKETS, _GOODPUT, _QUEUE)
}
_UNITS = {"segs": "segments", "us": "us", "bytes": "B", "Bps": "B/s", "bps": "bit/s", "s": "s"}


def describe(table: str, column: str) -> tuple[str, str]:
    """Unit and meaning of a column.

    Tables of module events (``j_j_abe``) are not listed: their units come from the names'
    endings and their meaning is empty, except for the columns that all tables share.
    """
    listed = TABLES.get(table)
    for item in listed.columns if listed else (_T, _FLOW):
        if item.name == column:
            return item.unit, item.about
    return _UNITS.get(column.rpartition("_")[2], ""), ""


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``recording.json``."""
    text, number, whole = {"type": "string"}, {"type": "number"}, {"type": "integer"}
    flow = {
        "type": "object",
        "required": ["src", "dst", "sport", "dport", "family"],
        "properties": {
            **dict.fromkeys(("src", "dst", "cc", "netns", "process", "cgroup"), text),
            **dict.fromkeys(("sport", "dport", "family", "pid", "una0_seq", "mss"), whole),
        },
    }
    source = {
        "type": "object",
        "required": ["name", "gives", "cannot"],
        "properties": {
            "name": text,
            "why": text,
            "gives": {"type": "array", "items": text},
            "cannot": {"type": "array", "items": text},
        },
    }
    counts = {"type": "object", "additionalProperties": whole}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "recording.json of ccscope",
        "type": "object",
        "required": ["format", "version", "tool", "duration_s", "flows", "sources", "tables"],
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "tool": text,
            "start_realtime_ns": whole,
            "start_monotonic_ns": whole,
            "duration_s": number,
            "clock": text,
            "virtual_time": {"type": "boolean"},
            "host": {"type": "object", "additionalProperties": text},
            "sources": {"type": "array", "items": source},
            "selection": {"type": "object"},
            "trigger": {"type": "object", "properties": {"what": text, "t_s": number}},
            "flows": {"type": "object", "additionalProperties": flow},
            "lost": counts,
            "overhead": {"type": "object", "additionalProperties": number},
            "tables": counts,
            "complete": {"type": "boolean"},
            "capture": text,
            "problems": {"type": "array", "items": text},
        },
    }
