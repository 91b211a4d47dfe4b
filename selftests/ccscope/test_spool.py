"""The spool: order, cut records, the flight recorder's ring."""

from __future__ import annotations

from pathlib import Path

import pytest
from ccscope.errors import CcscopeError
from ccscope.spool import LINES, NOTE, PAGES, SpoolReader, SpoolWriter


def _fill(folder: Path, count: int = 20, **options: float) -> SpoolWriter:
    writer = SpoolWriter(folder, {"clock": "x"}, **options)  # type: ignore[arg-type]
    for i in range(count):
        writer.append(PAGES if i % 2 else LINES, bytes([i % 256]) * 100, float(i))
    return writer


def test_records_come_back_in_order(tmp_path: Path) -> None:
    writer = _fill(tmp_path / "s", segment_s=3.0)
    writer.note({"end": True}, 20.0)
    writer.close()
    assert len(list((tmp_path / "s").glob("*.seg"))) == 6
    reader = SpoolReader(tmp_path / "s")
    records = list(reader.records())
    assert [p[0] for _, p in records[:-1]] == list(range(20))
    assert records[-1] == (NOTE, b'{"end": true}')
    assert reader.head == {"clock": "x"}
    assert reader.problems == []


def test_every_cut_costs_the_last_record_at_most(tmp_path: Path) -> None:
    _fill(tmp_path / "s", 5).close()
    file = tmp_path / "s" / "000001.seg"
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        reader = SpoolReader(tmp_path / "s")
        got = list(reader.records())
        assert len(got) == max(size - 8, 0) // 109
        assert bool(reader.problems) == (size < 8 or (size - 8) % 109 != 0)


def test_a_flipped_bit_is_found_and_other_segments_are_read(tmp_path: Path) -> None:
    _fill(tmp_path / "s", 20, segment_s=5.0).close()
    file = tmp_path / "s" / "000002.seg"
    data = bytearray(file.read_bytes())
    data[50] ^= 4
    file.write_bytes(data)
    reader = SpoolReader(tmp_path / "s")
    numbers = [p[0] for _, p in reader.records()]
    assert numbers == [*range(6), *range(12, 20)]
    assert "000002.seg" in reader.problems[0]


def test_the_ring_keeps_what_it_must_and_no_more(tmp_path: Path) -> None:
    writer = _fill(tmp_path / "s", 1000, segment_s=2.0, keep_s=10.0)
    writer.close()
    numbers = len(list(SpoolReader(tmp_path / "s").records()))
    assert 10 <= numbers <= 16


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    writer = _fill(tmp_path / "s", 1)
    with pytest.raises(CcscopeError, match="holds a recording already"):
        SpoolWriter(tmp_path / "s", {})
    writer.close()
    with pytest.raises(CcscopeError, match="cannot be read"):
        SpoolReader(tmp_path)
    (tmp_path / "s" / "head.json").write_text("{")
    with pytest.raises(CcscopeError, match="damaged"):
        SpoolReader(tmp_path / "s")


def test_a_full_disk_is_an_error_that_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path / "s", {})
    writer.append(LINES, b"x", 0.0)

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_put", full)
    with pytest.raises(CcscopeError, match=r"No space left.*ccscope finish"):
        writer.append(LINES, b"y", 0.0)
