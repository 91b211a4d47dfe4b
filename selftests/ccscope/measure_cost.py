"""What recording costs: one flow at 100 Mbit/s in a lab guest, recorded and not.

Run by ``make ccscope-cost`` (tens of minutes).  In virtual time one instruction is one nanosecond,
so busy time counts instructions; what differs between the runs is the recording alone.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from airlab import kernels
from airlab.collect import collect
from airlab.engines import Watch
from airlab.engines.vm import VmEngine
from airlab.image import ensure_image
from airlab.model import Cell, CellPlan
from airlab.plan import build_plan
from airlab.scenario import parse_scenario
from ccscope import btf
from ccscope.rawtrace import read_raw
from ccscope.recording import Columns, Writer
from ccscope.sources.probes import probes

SCENARIO = """
schema = 1
name = "cost"
title = "Cost of recording"
purpose = "What does recording change?"
duration = "{seconds}s"
cc = ["cubic"]
allow_fast = true
[trace]
queue = false
acks = false
modules = false
capture = false
[nodes.a]
[nodes.b]
[links.l]
between = ["a", "b"]
rate = "100Mbit"
delay = "10ms"
buffer = "170pkt"
[[flows]]
from = "a"
to = "b"
"""
OURS = "dporthi == 19 && dportlo == 137"  # the sender's sockets: remote port 5001
THEIRS = "dport == 5001"


def plan(seconds: int, mode: str) -> CellPlan:
    """The plan: ``off``, ``before`` (tcp_probe) or ``after`` (kprobe events)."""
    scenario = parse_scenario(tomllib.loads(SCENARIO.format(seconds=seconds)), "cost.toml")
    made = build_plan(scenario, Cell("cubic", 1))
    files = dict(made.files)
    if mode == "off":
        return made
    types = btf.of_vmlinux(kernels.find(None).vmlinux)
    found = probes(types, types.functions - {"tcp_check_space"}, per_ack=mode == "after")
    events = [(f"ccscope/{event}", OURS) for event in sorted({p.event for p in found})]
    events += [("tcp/tcp_retransmit_skb", THEIRS)]
    if mode == "before":
        events.append(("tcp/tcp_probe", THEIRS))
    files["kprobe_events"] = "".join(p.line("ccscope") + "\n" for p in found).encode()
    files["trace.triggers"] = b"ccscope/ca\tstacktrace\n"
    files["trace.events"] = "".join(f"{name}\t{rule}\n" for name, rule in events).encode()
    env = re.sub(rb"TRACE=0", b"TRACE=1", files["env"])
    files["env"] = re.sub(rb"TRACE_KB=\d+", b"TRACE_KB=131072", env)
    return replace(made, files=files)


def busy_s(raw: Path) -> float:
    """Seconds in which the processor was not idle, between the two looks at /proc/stat."""

    def ticks(name: str) -> int:
        fields = [int(v) for v in (raw / name).read_text().split("\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4]

    return (ticks("stat1") - ticks("stat0")) / 100


def curve(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """cwnd as the sender's TCP_INFO polls saw it, which need no trace."""
    samples = pq.read_table(folder / "samples.parquet")
    return samples["t_s"].to_numpy(), samples["cwnd_segs"].to_numpy()


def main(seconds: int) -> None:
    """Run and print one JSON object a mode."""
    engine = VmEngine(ensure_image(kernels.find(None)))
    base: tuple[float, float, tuple[np.ndarray, np.ndarray]] | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for mode in ("off", "after", "before"):
            made = plan(seconds, mode)
            folder = Path(scratch) / mode
            raw = engine.run(made, folder, Watch(), 0).out
            (folder / "cell").mkdir()
            cell = collect(raw, made, folder / "cell")
            row: dict[str, object] = {"mode": mode, "busy_s": busy_s(raw)}
            row["goodput_bps"] = cell["flows"][0]["goodput_bps"]
            if base is None:
                base = (busy_s(raw), cell["flows"][0]["goodput_bps"], curve(folder / "cell"))
            else:
                meta, tables = read_raw(raw)
                row |= _compare(base, row, curve(folder / "cell"), tables)
                row["lost"] = meta["lost"]
                row["raw_bytes"] = (raw / "trace.raw").stat().st_size
                with Writer(folder / "rec") as writer:
                    writer.add("acks", tables["acks"])
                    writer.finish(meta)
                size = (folder / "rec" / "acks.parquet").stat().st_size
                row["parquet_bytes_per_million_acks"] = round(
                    size / len(tables["acks"]["t_s"]) * 1e6
                )
            print(json.dumps(row), flush=True)


def _compare(
    base: tuple[float, float, tuple[np.ndarray, np.ndarray]],
    row: dict[str, object],
    seen: tuple[np.ndarray, np.ndarray],
    tables: dict[str, Columns],
) -> dict[str, object]:
    acks = len(tables["acks"]["t_s"])
    times, cwnd = base[2]
    other = np.interp(times, *seen)
    extra = (float(str(row["busy_s"])) - base[0]) * 1e9
    return {
        "acks": acks,
        "instructions_per_ack": round(extra / acks),
        "goodput_change": float(str(row["goodput_bps"])) / base[1] - 1,
        "cwnd_mean_change": float(other.mean() / cwnd.mean() - 1),
        "cwnd_rms_difference_segs": float(np.sqrt(((other - cwnd) ** 2).mean())),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
