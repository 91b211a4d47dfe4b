"""Opens and writes recordings.

A recording is a folder with ``recording.json`` (schema: :func:`ccscope.schema.json_schema`)
and one Parquet file a table.  :meth:`Recording.open` also takes a cell folder of airlab
(``cell.json`` beside tables of the same names) and a recording that was cut off, of which only
``spool/`` exists.  What cannot be read is named in ``problems`` and the rest is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ccscope import __version__, schema
from ccscope.errors import CcscopeError
from ccscope.spool import write_json

Array = npt.NDArray[Any]
Columns = dict[str, Array]

_CELL_ACKS = {"phase": "before", "ssthresh_is": "current"}


@dataclass
class Recording:
    """A recording, read table by table when asked for.

    Attributes:
        path: the folder.
        kind: ``recording``, ``cell`` (of airlab) or ``spool`` (never finished).
        meta: the content of ``recording.json``; made up from ``cell.json`` for a cell.
        problems: what could not be read and why, and what the recorder itself noted.
    """

    path: Path
    kind: str
    meta: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    _tables: dict[str, Columns] = field(default_factory=dict)
    _captured: dict[str, Columns] | None = None

    @classmethod
    def open(cls, path: Path | str) -> Recording:
        """Open a folder.

        Raises:
            CcscopeError: there is no recording at all in it.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CcscopeError(
                f"{folder} is not a folder; a recording is the folder that `ccscope record -o` or "
                "`ccscope import -o` made, or a cell folder of airlab"
            )
        if (folder / "cell.json").is_file():
            return cls(folder, "cell", _cell_meta(folder))
        # While it is written, and when it was cut off, a recording has its spool.
        if (folder / "spool" / "head.json").is_file():
            from ccscope.decode import decode_spool

            meta, tables, problems = decode_spool(folder / "spool")
            return cls(folder, "spool", meta, problems, tables)
        meta, problems = _meta(folder)
        return cls(folder, "recording", meta, problems)

    @property
    def flows(self) -> dict[str, dict[str, Any]]:
        """The flows by label: addresses, ports, algorithm, what else is known."""
        made: dict[str, dict[str, Any]] = self.meta.get("flows", {})
        return made

    @property
    def duration_s(self) -> float:
        """Seconds from the start to the end."""
        return float(self.meta.get("duration_s", 0.0))

    @property
    def capture(self) -> Path | None:
        """The packet capture beside the tables, if there is one."""
        names = (self.meta.get("capture"), "capture.pcapng", "capture.pcap", "cap.pcap")
        return next((self.path / n for n in names if n and (self.path / n).is_file()), None)

    def tables(self) -> list[str]:
        """Names of the tables, known ones first in the schema's order."""
        found = {p.stem for p in self.path.glob("*.parquet")} | set(self._tables)
        order = [name for name in schema.TABLES if name in found]
        return order + sorted(found - set(order))

    def table(self, name: str) -> Columns:
        """All rows of a table.

        Numbers that are null come as NaN (the column is float64 then), texts as None.  A
        listed table has all columns of the schema, even when it is absent or came from an
        older recorder; a table that is neither listed nor there is empty.
        """
        if name not in self._tables:
            self._tables[name] = self._read(name)
        return self._tables[name]

    def flow(self, name: str, label: str) -> Columns:
        """The rows of one flow (or stage, in ``queue``)."""
        columns = self.table(name)
        listed = schema.TABLES.get(name)
        owner = columns.get(listed.key if listed else "flow")
        if owner is None:
            return {}
        mine = owner == label
        return {column: values[mine] for column, values in columns.items()}

    def captured(self) -> dict[str, Columns]:
        """The capture's packets by flow, in tables like ``packets``; empty without a capture."""
        if self._captured is None:
            from ccscope.captured import packets_of

            self._captured = packets_of(self)
        return self._captured

    def _read(self, name: str) -> Columns:
        columns: Columns = {}
        file = self.path / f"{name}.parquet"
        if file.is_file():
            try:
                table = pq.read_table(file)
                columns = {n: to_numpy(table.column(n)) for n in table.column_names}
            except (OSError, pa.ArrowException) as error:
                self.problems.append(f"{file.name} cannot be read: {str(error).splitlines()[0]}")
        if self.kind == "cell" and name == "acks" and columns:
            rows = len(columns["t_s"])
            for column, value in _CELL_ACKS.items():
                columns.setdefault(column, np.full(rows, value, dtype=object))
        return complete(name, columns)


def _meta(folder: Path) -> tuple[dict[str, Any], list[str]]:
    file = folder / "recording.json"
    tables = sorted(folder.glob("*.parquet"))
    try:
        meta = json.loads(file.read_text())
    except OSError as error:
        reason = f"recording.json cannot be read: {error.strerror}"
    except ValueError as error:
        reason = f"recording.json is damaged: {error}"
    else:
        if not isinstance(meta, dict) or meta.get("format") != schema.FORMAT:
            raise CcscopeError(f"{file} is not a recording's: its format is not {schema.FORMAT!r}")
        if meta.get("version", 0) > schema.VERSION:
            raise CcscopeError(
                f"{file} has version {meta['version']}, this ccscope reads up to {schema.VERSION}: "
                "use a newer one"
            )
        return meta, list(meta.get("problems", []))
    if not tables:
        raise CcscopeError(f"{folder} holds no recording: {reason}, and there are no tables")
    return {"format": schema.FORMAT, "version": schema.VERSION, "flows": {}}, [reason]


def _cell_meta(folder: Path) -> dict[str, Any]:
    try:
        cell = json.loads((folder / "cell.json").read_text())
        flows = {
            row["label"]: {
                **{name: row[name] for name in ("src", "dst", "cc")},
                **{"sport": 0, "dport": row["port"], "family": 0},
            }
            for row in cell["flows"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CcscopeError(f"{folder / 'cell.json'} is damaged: {error!r}") from error
    trace = cell.get("trace") or {}
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "tool": "airlab",
        "duration_s": cell.get("duration_s", 0.0),
        "clock": "CLOCK_MONOTONIC",
        "virtual_time": True,
        "host": {"kernel": cell.get("kernel", "")},
        "sources": [{"name": "airlab", "gives": [], "cannot": []}],
        "flows": flows,
        "lost": {"tracefs": trace.get("lost", 0)},
        "tables": {},
        "complete": True,
        **({"start_realtime_ns": began} if (began := cell.get("start_realtime_ns")) else {}),
        "title": f"{cell.get('scenario', '')} {cell.get('slug', '')}".strip(),
    }


def to_numpy(values: Any) -> Array:  # noqa: ANN401 - pyarrow is not typed
    """A column as numpy: numbers (NaN for null) or an object array of texts (None for null)."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(pa.string())  # to_numpy() of dictionaries forgets nulls
    return np.asarray(values.to_numpy(zero_copy_only=False))


def complete(name: str, columns: Columns) -> Columns:
    """Add the schema's columns that are missing, as nulls."""
    listed = schema.TABLES.get(name)
    if listed is None:
        return columns
    rows = len(next(iter(columns.values()))) if columns else 0
    made = dict(columns)
    for column in listed.columns:
        if column.name not in made:
            text = column.type == "text"
            made[column.name] = np.full(rows, None if text else np.nan, object if text else float)
    return made


# ---- writing ----


def arrow_column(table: str, name: str, values: Array) -> Any:  # noqa: ANN401 - pyarrow
    """A numpy column as Arrow, in the schema's type if it is listed; NaN and None are null."""
    listed = schema.TABLES.get(table)
    wanted = next((c.type for c in listed.columns if c.name == name), "") if listed else ""
    if values.ndim > 1:
        return pa.array(list(values))
    if wanted == "text" or values.dtype == object:
        return pa.array(values, pa.string()).dictionary_encode()
    if not wanted:
        return pa.array(values)
    kind = getattr(pa, wanted)()
    if values.dtype.kind == "f":
        mask = np.isnan(values)
        if wanted != "float64":
            values = np.where(mask, 0, values).astype(wanted)
        return pa.array(values, kind, mask=mask)
    return pa.array(values).cast(kind, safe=False)


def arrow_table(table: str, columns: Mapping[str, Any]) -> Any:  # noqa: ANN401 - pyarrow
    """An Arrow table whose fields carry unit and meaning; values are numpy or Arrow arrays."""
    fields, arrays = [], []
    for name, values in columns.items():
        array = arrow_column(table, name, values) if isinstance(values, np.ndarray) else values
        unit, about = schema.describe(table, name)
        fields.append(pa.field(name, array.type, metadata={"unit": unit, "about": about}))
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


class Writer:
    """Writes a recording's tables piece by piece, then ``recording.json``.

    Use as a context manager; without :meth:`finish` there is no ``recording.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[str, int] = {}
        self._open: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "recording.json").exists():
            raise CcscopeError(f"{folder} holds a recording already; give another -o")

    def add(self, name: str, columns: Columns) -> None:
        """Append rows to a table; pieces of a table must have the same columns."""
        if name in schema.TABLES:
            whole = complete(name, columns)
            columns = {c: whole[c] for c in schema.TABLES[name].names}
        table = arrow_table(name, columns)
        if name not in self._open:
            file = self.folder / f"{name}.parquet"
            self._open[name] = pq.ParquetWriter(file, table.schema, compression="zstd")
        self._open[name].write_table(table)
        self.rows[name] = self.rows.get(name, 0) + table.num_rows

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Close the tables and write ``recording.json``."""
        self._close()
        first = {
            "format": schema.FORMAT,
            "version": schema.VERSION,
            "tool": f"ccscope {__version__}",
        }
        write_json(self.folder / "recording.json", {**first, **meta, "tables": self.rows})

    def _close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()
