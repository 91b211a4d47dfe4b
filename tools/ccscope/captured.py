"""The packets of a capture that lies beside the tables, by the recording's flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ccscope.errors import CcscopeError
from ccscope.recording import Columns, Recording


def packets_of(recording: Recording) -> dict[str, Columns]:
    """Tables like ``packets`` by flow label, times on the recording's clock.

    A capture that cannot be read, or whose clock cannot be told, is named in the recording's
    problems.
    """
    from ccscope.imports.pcap import Importer

    file = recording.capture
    if file is None:
        return {}
    reader, pieces = Importer(file), list[Columns]()
    try:
        pieces = [batch["packets"] for batch in reader.batches()]
    except CcscopeError as error:
        recording.problems.append(str(error))
    recording.problems += reader.problems
    if not pieces:
        return {}
    whole = {n: np.concatenate([piece[n] for piece in pieces]) for n in pieces[0]}
    whole["t_s"] = whole["t_s"] + _shift(recording, reader.start_ns)
    made = {}
    for label, flow in recording.flows.items():
        found = next((n for n, f in reader.flows.items() if _same(flow, f)), None)
        if found is not None:
            mine = whole["flow"] == found
            made[label] = {name: values[mine] for name, values in whole.items()}
    return made


def _shift(recording: Recording, start_ns: int) -> float:
    began = recording.meta.get("start_realtime_ns")
    if began:
        return (start_ns - int(began)) / 1e9
    recording.problems.append(
        "the recording does not say when it began by the capture's clock; the capture's first "
        "packet is put at 0 s"
    )
    return 0.0


def _same(flow: Mapping[str, Any], captured: Mapping[str, Any]) -> bool:
    """Whether a flow of the capture is this one; airlab's cells know no address, only a port."""
    if flow.get("dport") != captured["dport"]:
        return False
    if not flow.get("sport"):
        return True
    return all(flow[name] == captured[name] for name in ("src", "dst", "sport"))
