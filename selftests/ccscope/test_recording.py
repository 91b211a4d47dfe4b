"""Recordings: writing, opening, cell folders, damage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from airlab.collect import collect
from ccscope import schema
from ccscope.cli import main
from ccscope.errors import CcscopeError
from ccscope.recording import Columns, Recording, Writer

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))
import conftest_results as synth

FLOWS = {
    "f1": {"src": "10.0.0.1", "dst": "10.0.0.2", "sport": 1, "dport": 2, "family": 4, "cc": "j"}
}


def _acks(start: float = 0.0) -> Columns:
    return {
        "t_s": np.arange(3) + start,
        "flow": np.array(["f1", "f1", "f2"], dtype=object),
        "cwnd_segs": np.array([10.0, np.nan, 12.0]),
        "phase": np.array(["before", None, "after"], dtype=object),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Writer(tmp_path / "r") as writer:
        writer.add("acks", _acks())
        writer.add("acks", _acks(3.0))
        writer.add("j_j_abe", {"t_s": np.zeros(1), "bw_Bps": np.array([7], dtype=np.uint64)})
        meta = {"duration_s": 6.0, "flows": FLOWS, "sources": [], "lost": {"tracefs": 0}}
        writer.finish(meta)
    return tmp_path / "r"


def test_what_was_written_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording.open(folder)
    assert (recording.kind, recording.duration_s, recording.problems) == ("recording", 6.0, [])
    assert recording.flows == FLOWS
    assert recording.tables() == ["acks", "j_j_abe"]
    acks = recording.flow("acks", "f1")
    assert acks["t_s"].tolist() == [0, 1, 3, 4]
    assert acks["cwnd_segs"][0] == 10
    assert np.isnan(acks["cwnd_segs"][1])
    assert acks["phase"].tolist() == ["before", None, "before", None]
    assert np.isnan(acks["min_rtt_us"]).all()
    assert set(recording.table("states")) == set(schema.TABLES["states"].names)
    assert recording.table("nothing") == {}
    assert recording.table("j_j_abe")["bw_Bps"].tolist() == [7]
    assert main(["info", str(folder)]) == 0
    assert "table acks: 6 rows" in capsys.readouterr().out


def test_columns_say_unit_and_meaning(folder: Path) -> None:
    table = pq.read_schema(folder / "acks.parquet")
    for column in schema.TABLES["acks"].columns:
        metadata = table.field(column.name).metadata
        assert metadata[b"unit"].decode() == column.unit
        assert metadata[b"about"].decode() == column.about != ""
    assert pq.read_schema(folder / "j_j_abe.parquet").field("bw_Bps").metadata[b"unit"] == b"B/s"


def test_recording_json_has_what_its_schema_requires(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "--json"]) == 0
    rules = json.loads(capsys.readouterr().out)
    data = json.loads((folder / "recording.json").read_text())
    assert set(rules["required"]) <= set(data) <= set(rules["properties"])
    assert main(["schema"]) == 0
    assert "cwnd_segs [segments]" in capsys.readouterr().out


def test_a_cell_of_airlab_is_a_recording(tmp_path: Path) -> None:
    plan = synth.make_plan("j", 2, 1e-6, 2.0)
    raw = synth.write_raw(tmp_path / "raw", plan)
    (tmp_path / "cell").mkdir()
    collect(raw, plan, tmp_path / "cell")
    recording = Recording.open(tmp_path / "cell")
    assert recording.kind == "cell"
    assert recording.meta["virtual_time"] is True
    assert recording.flows["f1"]["cc"] == "j"
    acks = recording.flow("acks", "f1")
    assert len(acks["t_s"]) > 100
    assert set(acks["phase"]) == {"before"}
    assert set(acks["ssthresh_is"]) == {"current"}
    assert len(recording.flow("queue", "air:fwd")["packets"])
    assert {"samples", "goodput", "states", "retransmits"} <= set(recording.tables())


def test_damage_leaves_what_is_readable(folder: Path) -> None:
    whole = (folder / "acks.parquet").read_bytes()
    (folder / "acks.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "recording.json").write_text('{"format": "cc')
    recording = Recording.open(folder)
    assert "recording.json is damaged" in recording.problems[0]
    assert recording.table("j_j_abe")["bw_Bps"].tolist() == [7]
    assert len(recording.table("acks")["t_s"]) == 0
    assert "acks.parquet cannot be read" in recording.problems[1]


def test_no_recording_is_an_error(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CcscopeError, match="holds no recording"):
        Recording.open(tmp_path)
    with pytest.raises(CcscopeError, match="not a folder"):
        Recording.open(tmp_path / "x")
    with pytest.raises(CcscopeError, match="holds a recording already"):
        Writer(folder)
    (folder / "recording.json").write_text('{"format": "x"}')
    with pytest.raises(CcscopeError, match="format"):
        Recording.open(folder)
    (folder / "recording.json").write_text('{"format": "ccscope-recording", "version": 99}')
    assert main(["info", str(folder)]) == 2
    assert "use a newer one" in capsys.readouterr().err
    (tmp_path / "cell.json").write_text('{"flows": [{}]}')
    with pytest.raises(CcscopeError, match=r"cell\.json is damaged"):
        Recording.open(tmp_path)
