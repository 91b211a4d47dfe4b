"""Labels of congestion-control algorithms and what each one needs in the kernel.

A label is what scenario files, tables and plots call an algorithm.  It stands for a name the
kernel knows, the modules to load, and settings of the sending host.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from .model import AirlabError


@dataclass(frozen=True)
class Algorithm:
    """What a label means: kernel name, modules, sysctls of the sender, module parameters.

    Without ``small_queues`` the sender's sockets lift TCP Small Queues.
    """

    label: str
    kernel_cc: str
    modules: tuple[str, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    events: tuple[str, ...] = ()
    notes: str = ""
    ours: bool = False
    small_queues: bool = True


def _module(label: str, notes: str = "", kernel_cc: str = "") -> Algorithm:
    return Algorithm(label, kernel_cc or label, (f"tcp_{kernel_cc or label}",), notes=notes)


_IMTCP_EVENTS = ("imtcp/imtcp_packet", "imtcp/imtcp_stream", "imtcp/imtcp_result")


def _cherry(label: str, notes: str) -> Algorithm:
    events = tuple(f"cherry/cherry_{name}" for name in ("phase", "plan", "supp", "acks", "loss"))
    return Algorithm(label, label, ("tcp_cherry",), events=events, notes=notes, ours=True)


_NEWRENO = Algorithm(
    "newreno",
    "reno",
    sysctls=(("net.ipv4.tcp_sack", "0"),),
    notes="Reno without SACK: loss is found by three duplicate ACKs and repaired one segment a "
    "round trip by partial ACKs (RFC 6582).  Without SACK Linux also uses neither RACK's timer nor "
    "tail loss probes.  Proportional rate reduction, F-RTO and timestamps remain.",
)

BUILTIN: dict[str, Algorithm] = {
    a.label: a
    for a in (
        _NEWRENO,
        Algorithm("reno", "reno", notes="Reno's window rules on SACK and RACK recovery."),
        Algorithm("cubic", "cubic", notes="The kernel's default, with HyStart."),
        _module("westwood", "Linux's Westwood+: one bandwidth sample a round trip."),
        _module("bbr", "BBR version 1, paced by the socket."),
        _module("illinois"),
        _module("vegas"),
        _module("veno"),
        _module("hybla"),
        _module("htcp"),
        _module("yeah", "Loads tcp_vegas too, whose functions it uses."),
        _module("cdg"),
        _module("scalable"),
        _module("highspeed"),
        _module("dctcp", "Needs ECN on the path to be itself."),
        _module("nv"),
        _module("lp"),
        _module("bic"),
        Algorithm(
            "j",
            "j",
            ("tcp_j",),
            events=("j/j_abe", "j/j_loss", "j/j_repaired"),
            notes="TCP-J, built from this repository.",
            ours=True,
        ),
        Algorithm(
            "imtcp",
            "imtcp",
            ("imtcp",),
            events=_IMTCP_EVENTS,
            notes="Reno with ImTCP's inline measurement, built from this repository.",
            ours=True,
        ),
        Algorithm(
            "imtcp_bg",
            "imtcp_bg",
            ("imtcp",),
            events=_IMTCP_EVENTS,
            notes="ImTCP-bg, background transfer (reconstructed), built from this repository.",
            ours=True,
        ),
        Algorithm(
            "symbiosis",
            "symbiosis",
            ("imtcp", "tcp_symbiosis"),
            events=(
                *_IMTCP_EVENTS,
                "symbiosis/symbiosis_step",
                "symbiosis/symbiosis_result",
                "symbiosis/symbiosis_loss",
            ),
            notes="TCP Symbiosis on ImTCP's measurement, built from this repository.",
            ours=True,
        ),
        _cherry(
            "cherry",
            "TCP-Cherry, built from this repository; First-Aid Recovery is a reconstruction.",
        ),
        _cherry(
            "cherry_plus",
            "TCP-Cherry+, built from this repository; First-Aid Recovery is a reconstruction.",
        ),
    )
}


def lookup(label: str, extra: dict[str, Algorithm] | None = None) -> Algorithm:
    """The algorithm a label stands for; ``extra`` holds a scenario's variants.

    Raises :class:`AirlabError` with the known labels when there is none.
    """
    known = {**BUILTIN, **(extra or {})}
    if label in known:
        return known[label]
    near = difflib.get_close_matches(label, known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise AirlabError(
        f"unknown congestion control {label!r}{hint}; known labels: {', '.join(sorted(known))}"
    )


def parameter_file(algorithm: Algorithm, name: str) -> str:
    """Where a module parameter is set; ``imtcp.trend`` is one of a module that ours uses."""
    module, dot, own = name.rpartition(".")
    return f"/sys/module/{module if dot else algorithm.modules[-1]}/parameters/{own}"


@cache
def module_systems() -> frozenset[str]:
    """The trace systems of our own modules: ``j`` of ``j/j_abe``."""
    return frozenset(e.partition("/")[0] for a in BUILTIN.values() for e in a.events)


def variant(
    label: str,
    base: Algorithm,
    sysctls: dict[str, str],
    params: dict[str, str],
    small_queues: bool = True,
) -> Algorithm:
    """A copy of ``base`` under another label with more sysctls and module parameters.

    Without ``small_queues`` its sockets are free of TCP Small Queues.
    """
    return Algorithm(
        label,
        base.kernel_cc,
        base.modules,
        tuple({**dict(base.sysctls), **sysctls}.items()),
        tuple({**dict(base.params), **params}.items()),
        base.events,
        base.notes,
        base.ours,
        small_queues,
    )
