"""The scenario language: models, loader, overrides and semantic checks.

A scenario is a TOML file.  :func:`load_scenario` reads one, applies ``--set`` overrides and
returns a :class:`Scenario`; whatever is wrong comes back as one :class:`AirlabError` that names
the file, the dotted key and the remedy.  The models here are the reference of the language; the
JSON schema in ``testbed/schema/`` is generated from them (``python -m airlab.scenario``).
"""

from __future__ import annotations

import copy
import difflib
import itertools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
)

from . import units
from .algorithms import Algorithm, lookup, variant
from .model import AirlabError, Scalar

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "schema" / "scenario.schema.json"

LEAST_FLOW_US = 10_000
MAX_UDP_BYTES = {4: 1472, 6: 1452}
"""UDP payload that fills a frame of 1514 bytes, by IP version."""

MAX_EVENTS = 2000
"""As many as a scenario may have, repetitions included."""

FAST_BPS = 100 * 10**6
"""A tenth of what 10^9 instructions a second can forward (1.4 Gbit/s without offloads)."""


def _parsed(parse: Callable[[object], object], kind: type, example: str, pattern: str) -> object:
    def convert(value: object) -> object:
        return value if kind is units.Buffer and isinstance(value, units.Buffer) else parse(value)

    schema = {"type": ["string", "number"], "pattern": pattern, "examples": [example]}
    return Annotated[kind, BeforeValidator(convert), WithJsonSchema(schema)]


if typing.TYPE_CHECKING:
    Rate = int
    Time = int
    Size = int
    Probability = float
    Ber = float
    Buffer = units.Buffer
else:
    Rate = _parsed(units.parse_rate, int, "5Mbit", r"^[0-9.eE+-]+ *[kMG]?bit(/s)?$")
    Time = _parsed(units.parse_time_us, int, "25ms", r"^[0-9.eE+-]+ *(ns|us|ms|s|min)$|^0$")
    Size = _parsed(units.parse_size, int, "64kB", r"^[0-9.eE+-]+ *([kMG]?B|[KMG]iB)$")
    Probability = _parsed(units.parse_probability, float, "1%", r"^[0-9.eE+-]+ *%?$")
    Ber = _parsed(units.parse_ber, float, "1e-6", r"^[0-9.eE+-]+$")
    Buffer = _parsed(
        units.parse_buffer, units.Buffer, "30pkt", r"^[0-9.eE+-]+ *(pkts?|BDP|[kMG]?B|[KMG]iB)$"
    )

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,11}$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
SysctlName = Annotated[str, Field(pattern=r"^net\.[A-Za-z0-9_.-]+$")]
DirectionName = Literal["both", "forward", "reverse"]
Qdisc = Literal["droptail", "codel", "fq_codel", "red", "fq", "prio", "cake"]
QueuePlace = Literal["wire", "host", "shared"]
CaseName = Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9.-]*$")]


class Strict(BaseModel):
    """Unknown keys are errors; values are frozen once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Node(Strict):
    """A host (ends connections) or a router (forwards); each is a network namespace."""

    role: Literal["host", "router"] = "host"
    sysctl: dict[SysctlName, int | str] = Field(
        default_factory=dict, description="full names, set before anything starts"
    )
    delayed_ack: bool = Field(
        True, description="false: the quickack attribute on this node's routes"
    )
    mss: Annotated[int, Field(ge=500, le=1448)] | None = Field(
        None, description="largest TCP payload this host asks its peers for, bytes"
    )
    initcwnd: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="initial window of this host's connections, segments (by its routes)"
    )
    qdisc: Literal["noqueue", "fq", "fq_codel"] = Field(
        "noqueue", description="root qdisc of a host's own devices"
    )
    offload: bool = Field(
        False,
        description="true: TCP builds segments of many packets, split when they leave the host "
        "(GSO without TSO); false: one packet a segment",
    )


class GilbertModel(Strict):
    """Two channel states with exponential dwell times, drawn from the seed."""

    good: Time = Field(description="mean dwell time in the good state")
    bad: Time = Field(description="mean dwell time in the bad state")
    bad_ber: Ber | None = None
    bad_loss: Probability | None = None
    good_ber: Ber | None = None
    good_loss: Probability | None = None


class Side(Strict):
    """What one direction of a link can have; in ``reverse`` only what differs is written."""

    rate: Rate | None = Field(None, description="bits per second of layer 2; none: unlimited")
    delay: Time | None = Field(None, description="one-way propagation delay, 0 to 60s")
    buffer: Buffer | None = Field(None, description="room of the queue: 30pkt, 64kB, 1.5BDP")
    qdisc: Qdisc | None = Field(
        None,
        description="droptail (default), an AQM, or prio: strict priority of all else over packets "
        "with DSCP LE, for which there is room for two; or cake: shaping, fair queues and four "
        "tins by DSCP (diffserv4)",
    )
    frame_time: Time | None = Field(
        None,
        description="queue host or shared: time that each frame costs besides its bits (a radio's "
        "preamble, spacing, back-off and link-level acknowledgement)",
    )
    ecn: bool | None = Field(None, description="codel, fq_codel, red: mark instead of drop")
    ber: Ber | None = Field(None, description="bit error rate; a frame is lost by its length")
    loss: Probability | None = Field(None, description="loss of each frame, whatever its length")
    gilbert: GilbertModel | None = None
    duplicate: Probability | None = None
    reorder: Probability | None = Field(None, description="share of frames that skip the delay")
    corrupt: Probability | None = Field(None, description="share of frames with one bit flipped")
    drop: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="exact frames to lose, counted from 0 among those of min_len or more"
    )
    min_len: Annotated[int, Field(ge=0, le=65535)] | None = None


class Link(Side):
    """A link between two nodes; forward is from the first to the second of ``between``."""

    between: tuple[Name, Name]
    direction: DirectionName = Field("both", description="where ber, loss, ... , drop apply")
    queue: QueuePlace = Field(
        "wire",
        description="where frames wait: on the way; on each node's own device, which refuses what "
        "does not fit (Local Congestion); or, half duplex, before one medium that both directions "
        "share, at the first node of between",
    )
    reverse: Side | None = Field(None, description="overrides for the second-to-first direction")


class Handoff(Strict):
    """The link goes away for ``gap`` and comes back with another rate and delay.

    ``inflight`` says what becomes of frames in the queue and of those that arrive in the gap:
    ``drop`` loses both (an AQM's queue is not emptied: it loses what it serves in the gap),
    ``hold`` keeps them, as far as the buffer goes, for the new link, ``forward`` serves them over
    the old link until the gap is over (make before break).  Frames on the way always arrive.
    """

    gap: Time
    rate: Rate | None = None
    delay: Time | None = None
    inflight: Literal["drop", "hold", "forward"] = "drop"


class Event(Strict):
    """Something that happens to a link at a given time; exactly one thing an event."""

    at: Time
    link: Name
    every: Time | None = Field(
        None, description="again and again, this long after it began, as often as time allows"
    )
    jitter: Time = Field(
        0, description="all of it comes up to this much later, drawn from the seed and the link"
    )
    direction: DirectionName = "both"
    outage: Time | None = Field(None, description="how long nothing passes")
    mode: Literal["drop", "hold"] = Field(
        "drop", description="outage: lose what leaves the queue, or stop the queue's service"
    )
    rate: Rate | None = None
    delay: Time | None = None
    handoff: Handoff | None = None


class Pause(Strict):
    """The application writes nothing for a while."""

    at: Time
    length: Time = Field(alias="for")


class Switch(Strict):
    """The sender changes its congestion control in mid-flow."""

    at: Time
    cc: str


class Flow(Strict):
    """A TCP bulk transfer; times count from the start of the experiment."""

    from_: Name = Field(alias="from")
    to: Name
    start: Time = 0
    stop: Time | None = Field(None, description="default: the scenario's end")
    size: Size | None = Field(None, alias="bytes", description="send this much instead of to stop")
    cc: str | None = Field(None, description="label; default: the algorithm under test")
    role: Literal["measured", "cross"] = "measured"
    recv_buffer: Size | None = Field(
        None, description="SO_RCVBUF; the window grows to about this much (the kernel doubles it)"
    )
    send_buffer: Size | None = Field(None, description="SO_SNDBUF")
    verify: bool = Field(False, description="check every byte that arrives")
    pause: list[Pause] = Field(default_factory=list)
    switch: list[Switch] = Field(default_factory=list)
    app_rate: Rate | None = Field(None, description="the application's own rate limit")
    sample: Time = Field(100_000, description="how often TCP_INFO is read")
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    spacing: Time = Field(0, description="between the starts of count flows")
    jitter: Time = Field(
        10_000, description="each starts up to this much later, drawn from the seed and its label"
    )


class Cross(Strict):
    """UDP cross traffic; ``size`` is the payload in bytes, ``rate`` counts layer 2."""

    from_: Name = Field(alias="from")
    to: Name
    rate: Rate
    size: Annotated[int, Field(ge=16, le=1472)] = 1000
    dist: Literal["cbr", "poisson"] = "cbr"
    start: Time = 0
    stop: Time | None = None


class Capture(Strict):
    """Where packets are captured: the node's end of a link, the first ``snaplen`` bytes."""

    node: Name
    link: Name
    snaplen: Annotated[int, Field(ge=64, le=65535)] = 80


class Trace(Strict):
    """What is recorded inside the kernel; all of it costs instructions, hence virtual time."""

    acks: bool = Field(True, description="cwnd, srtt, states, retransmissions by tracepoints")
    queue: bool = Field(True, description="bottleneck queue and drops by tracepoints")
    causes: bool = Field(
        False, description="why the congestion state changed, by the kernel's call stack"
    )
    modules: bool = Field(True, description="the algorithms' own tracepoints, as j:j_abe")
    capture: Capture | bool = Field(
        True, description="true: at the first measured flow's receiver; false: none"
    )
    keep_pcap: bool = Field(False, description="false: only the capture's hash is kept")


class Variant(Strict):
    """A label of the scenario's own: an algorithm with other sysctls or module parameters."""

    cc: str
    sysctl: dict[SysctlName, int | str] = Field(default_factory=dict)
    params: dict[str, int | str] = Field(
        default_factory=dict,
        description="module parameters; MODULE.NAME for another module's or a built-in one's",
    )
    small_queues: bool = Field(
        True,
        description="false: TCP Small Queues lifted for the socket, by TCP_TX_DELAY (which only fq "
        "would turn into a delay)",
    )


class Expect(Strict):
    """A claim to be judged over the seeds.

    With ``over``, ``against`` or both it is about the paired ratio to that algorithm (default: the
    same), at the point that differs in what ``against`` says; with ``difference`` about the paired
    difference.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    claim: str
    metric: str = "goodput_bps"
    of: str
    over: str | None = None
    where: dict[str, Scalar] = Field(default_factory=dict)
    against: dict[str, Scalar] = Field(default_factory=dict)
    difference: bool = False
    min: float | None = None
    max: float | None = None
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    source: str | None = None

    def faults(self) -> Iterator[str]:
        """What is wrong with it wherever it stands, to be put behind its place in the file."""
        if self.min is None and self.max is None:
            yield ": give min, max or both"
        if self.min is not None and self.max is not None and self.min > self.max:
            yield f": min ({self.min:g}) is more than max ({self.max:g}); no value satisfies both"
        if self.difference and not (self.over or self.against):
            yield ".difference: to what? give over, against or both"


class Scenario(Strict):
    """A whole scenario; :func:`load_scenario` makes one."""

    schema_: Literal[1] = Field(alias="schema")
    name: Slug
    title: str
    purpose: str = Field(description="the question the scenario answers")
    paper: str | None = Field(None, description="which figure or table of which paper")
    duration: Time
    seeds: Annotated[int, Field(ge=1, le=10000)] = 5
    cc: Annotated[list[str], Field(min_length=1)]
    baseline: str | None = Field(None, description="label that gains are counted against")
    ip: Literal[4, 6] = 4
    gips: Literal[1, 2, 4, 8, 16] = Field(
        1,
        description="speed of the virtual processor, 10^9 instructions a second (engine vm only)",
    )
    allow_fast: bool = Field(False, description="permit rates above 100 Mbit/s for each of gips")
    nodes: Annotated[dict[Name, Node], Field(min_length=2)]
    links: Annotated[dict[Name, Link], Field(min_length=1, max_length=200)]
    events: list[Event] = Field(default_factory=list)
    flows: Annotated[list[Flow], Field(min_length=1)]
    cross: list[Cross] = Field(default_factory=list)
    trace: Trace = Field(default_factory=lambda: Trace.model_validate({}))
    sweep: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(default_factory=dict)
    cases: dict[CaseName, dict[str, Scalar]] = Field(
        default_factory=dict,
        description="named sets of overrides (dotted key: value); the key case chooses one",
    )
    case: CaseName | None = Field(None, description="which of the cases applies; may be swept")
    variants: dict[Name | str, Variant] = Field(default_factory=dict)
    expect: list[Expect] = Field(default_factory=list)

    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="scenario")

    @property
    def raw(self) -> dict[str, Any]:
        """The tables as run: the file's text with overrides applied, sweeps not."""
        return copy.deepcopy(self._raw)

    @property
    def source(self) -> str:
        """The file this came from, for messages."""
        return self._source

    def algorithm(self, label: str) -> Algorithm:
        """The algorithm behind a label, variants of this scenario included."""
        return lookup(label, _variants(self))

    @property
    def fast_bps(self) -> int:
        """Above it a rate needs ``allow_fast``; what a link without a rate is taken for."""
        return FAST_BPS * self.gips

    def unmet(self, where: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Of a claim's conditions on points those that the file or ``--set`` does not meet."""
        return {
            key: value
            for key, value in where.items()
            if key in self.sweep or _get_dotted(self._raw, key) != value
        }

    def at_point(self, point: dict[str, Scalar]) -> Scenario:
        """The scenario with swept keys set, checked like a file; sweeps and claims stay behind."""
        raw = self.raw
        raw.pop("sweep", None)
        raw.pop("expect", None)
        for key, value in point.items():
            _set_dotted(raw, key, value, self._source)
        return parse_scenario(raw, self._source)


def _variants(scenario: Scenario) -> dict[str, Algorithm]:
    made: dict[str, Algorithm] = {}
    for label, spec in scenario.variants.items():
        texts = {k: str(v) for k, v in spec.sysctl.items()}
        params = {k: str(v) for k, v in spec.params.items()}
        made[label] = variant(label, lookup(spec.cc), texts, params, spec.small_queues)
    return made


# Reading -------------------------------------------------------------------------------------

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; AirlabError when it cannot be read or is not TOML."""
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise AirlabError(f"{path}: cannot read it ({error.strerror}); see `airlab list`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AirlabError(f"{path}: not valid TOML: {error}") from None


def validate(model: type[M], raw: dict[str, Any], source: str) -> M:
    """Check tables against a model; AirlabError with a line for each fault."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(model, dict(e)) for e in error.errors()]
        unique = list(dict.fromkeys(lines))
        raise AirlabError("\n".join(f"{source}: {line}" for line in unique)) from None


def load_scenario(path: Path | str, overrides: dict[str, str] | None = None) -> Scenario:
    """Read a scenario file and apply ``--set`` overrides (dotted key: text).

    A comma list makes a sweep of the key (for ``cc``, the list itself).  Raises
    :class:`AirlabError` with one line for each fault: file, dotted key, remedy.
    """
    raw = read_toml(Path(path))
    for key, text in (overrides or {}).items():
        _override(raw, key, text, str(path))
    for key in overrides or {}:
        _refuse_cased(raw, key, str(path))
    return parse_scenario(raw, str(path))


def parse_scenario(raw: dict[str, Any], source: str) -> Scenario:
    """Check tables and return the scenario; ``source`` names them in messages."""
    scenario = validate(Scenario, _with_case(raw, source), source)
    scenario = scenario.model_copy(update={"events": _unrolled(scenario)})
    scenario._raw = copy.deepcopy(raw)
    scenario._source = source
    faults = list(dict.fromkeys(_faults(scenario)))
    if faults:
        raise AirlabError("\n".join(f"{source}: {fault}" for fault in faults))
    for key, values in scenario.sweep.items():
        for value in values:
            scenario.at_point({key: value})
    return scenario


def _with_case(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """The tables with the chosen case's overrides applied."""
    case, cases = raw.get("case"), raw.get("cases")
    if case is None or not isinstance(cases, dict):
        return raw
    if case not in cases:
        raise AirlabError(f"{source}: case: no case {case!r}{_near(str(case), cases)}")
    made = copy.deepcopy(raw)
    if isinstance(cases[case], dict):
        for key, value in cases[case].items():
            _set_dotted(made, key, value, source)
    return made


def _refuse_cased(raw: dict[str, Any], key: str, source: str) -> None:
    """A case decides its keys: setting one from outside would be without effect."""
    cases, sweep = raw.get("cases"), raw.get("sweep")
    if not isinstance(cases, dict) or not isinstance(sweep, dict | None):
        return
    chosen = (sweep or {}).get("case") or [raw.get("case")]
    names = [n for n, table in cases.items() if n in chosen and key in table]
    if names:
        raise AirlabError(
            f"{source}: --set {key}: the case {', '.join(names)} sets it; choose others by --set "
            "case=NAME, or change the file"
        )


def _unrolled(scenario: Scenario) -> list[Event]:
    """The events with those that have ``every`` written out."""
    made: list[Event] = []
    for event in scenario.events:
        made.append(event)
        step = event.every or 0
        length = event_end(event) - event.at
        # One that would overlap itself is left for the check that says so.
        while step > 0 and made[-1].at + step + length + event.jitter <= scenario.duration:
            made.append(made[-1].model_copy(update={"at": made[-1].at + step}))
            if len(made) > MAX_EVENTS:
                raise AirlabError(
                    f"{scenario.source}: events: more than {MAX_EVENTS}; make every longer"
                )
    return made


def _override(raw: dict[str, Any], key: str, text: str, source: str) -> None:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts:
        raise AirlabError(f"{source}: --set {key}= has no value")
    values = [_scalar(p) for p in parts]
    sweep = raw.setdefault("sweep", {}) if len(values) > 1 else raw.get("sweep", {})
    if not isinstance(sweep, dict):
        raise AirlabError(f"{source}: sweep: must be a table of dotted keys and lists")
    if key == "cc":
        raw["cc"] = values
    elif len(values) > 1:
        sweep[key] = values
    else:
        sweep.pop(key, None)
        _set_dotted(raw, key, values[0], source)


def _scalar(text: str) -> Scalar:
    if text in ("true", "false"):
        return text == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _set_dotted(raw: dict[str, Any], key: str, value: Scalar, source: str) -> None:
    """Set ``links.air.ber`` or ``flows.0.cc``; tables of names must have the name already.

    What follows ``nodes.NAME.sysctl.`` (or ``variants.``) is one name, dots and all.
    """
    *way, last = _steps(key)
    at: Any = raw
    for depth, part in enumerate(way):
        if isinstance(at, list):
            at = at[_index(at, part, key, source)]
        elif isinstance(at, dict):
            if part not in at and depth == 1 and way[0] in ("nodes", "links", "variants"):
                raise AirlabError(f"{source}: {key}: no {part!r} there{_near(part, at)}")
            at = at.setdefault(part, {})
        else:
            raise AirlabError(f"{source}: {key}: {part!r} is below a value, not a table")
    if isinstance(at, list):
        at[_index(at, last, key, source)] = value
    elif isinstance(at, dict):
        at[last] = value
    else:
        raise AirlabError(f"{source}: {key}: {last!r} is below a value, not a table")


def _get_dotted(raw: dict[str, Any], key: str) -> object:
    """What stands at a dotted key; None where nothing does."""
    at: Any = raw
    for step in _steps(key):
        if isinstance(at, list):
            at = at[int(step)] if step.isdigit() and int(step) < len(at) else None
        else:
            at = at.get(step) if isinstance(at, dict) else None
    return at


def _steps(key: str) -> list[str]:
    parts = key.split(".")
    if parts[0] in ("nodes", "variants") and parts[2:3] == ["sysctl"] and len(parts) > 4:
        parts = [*parts[:3], ".".join(parts[3:])]
    return parts


def _index(rows: list[Any], part: str, key: str, source: str) -> int:
    if part.isdigit() and int(part) < len(rows):
        return int(part)
    raise AirlabError(f"{source}: {key}: {part!r} is not one of the rows 0 to {len(rows) - 1}")


def _near(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


# Explaining faults ---------------------------------------------------------------------------


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: object) -> Iterator[object]:
    """The annotation's alternatives, with Annotated and Optional taken off."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _models_in(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _models_in(option)
    else:
        yield annotation


def _inner_model(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model that a location inside ``model`` belongs to."""
    here: list[Any] = [model]
    for part in loc:
        below: list[Any] = []
        for kind in here:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                fields = kind.model_fields.items()
                hits = [f.annotation for n, f in fields if part in (n, f.alias)]
                below += hits if hits else [kind]
            elif typing.get_origin(kind) in (list, dict, tuple):
                below.append(typing.get_args(kind)[-1])
        here = [option for kind in below for option in _models_in(kind)]
    found = [k for k in here if isinstance(k, type) and issubclass(k, BaseModel)]
    return found[0] if found else None


def _dotted(loc: tuple[Any, ...]) -> str:
    hidden = {"Capture", "bool", "[key]", "int", "str", "float"}
    return ".".join(str(p) for p in loc if str(p) not in hidden) or "(top)"


def _explain(model: type[BaseModel], error: dict[str, Any]) -> str:
    loc, kind = tuple(error["loc"]), error["type"]
    key = _dotted(loc)
    if kind == "extra_forbidden":
        owner = _inner_model(model, loc[:-1])
        return f"{key}: unknown key{_near(str(loc[-1]), _keys(owner) if owner else ())}"
    if kind == "missing":
        return f"{key}: missing; add it"
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = error.get("input")
    if kind == "value_error" or not isinstance(shown, str | int | float):
        return f"{key}: {message}"
    return f"{key}: {message} (is {shown!r})"


# What a schema cannot say --------------------------------------------------------------------


def _faults(s: Scenario) -> Iterator[str]:
    yield from _label_faults(s)
    if s.duration < 1_000_000:
        yield "duration: an experiment lasts at least 1s"
    if s.duration > 3600 * 10**6:
        yield "duration: an experiment lasts at most 60min; use more seeds instead"
    yield from _link_faults(s)
    yield from _event_faults(s)
    yield from _flow_faults(s)
    yield from _trace_faults(s)
    yield from _case_faults(s)
    yield from _expect_faults(s)


def _case_faults(s: Scenario) -> Iterator[str]:
    if s.case is not None and not s.cases:
        yield f"case: there is no table of cases to choose {s.case!r} from"
    for name, values in s.cases.items():
        for key in values:
            if key in s.sweep:
                yield f"cases.{name}.{key!r}: is swept, too; leave it out of one of them"
            if key.split(".")[0] in ("case", "cases", "sweep", "schema", "name", "expect", "cc"):
                yield f"cases.{name}.{key!r}: a case cannot change this"


def _label_faults(s: Scenario) -> Iterator[str]:
    try:
        known = _variants(s)
    except AirlabError as error:
        yield f"variants: {error}"
        return
    used = [("cc", label) for label in s.cc]
    used += [("baseline", s.baseline)] if s.baseline else []
    for i, flow in enumerate(s.flows):
        used += [(f"flows.{i}.cc", flow.cc)] if flow.cc else []
        used += [(f"flows.{i}.switch", item.cc) for item in flow.switch]
    for key, label in used:
        try:
            lookup(label, known)
        except AirlabError as error:
            yield f"{key}: {error}"
    if len(set(s.cc)) != len(s.cc):
        yield "cc: a label is written twice"


def _sides(link: Link) -> Iterator[tuple[str, Side]]:
    yield "", link
    if link.reverse is not None:
        yield ".reverse", link.reverse


def _link_faults(s: Scenario) -> Iterator[str]:
    names = set(s.nodes)
    for name, link in s.links.items():
        for node in link.between:
            if node not in names:
                yield f"links.{name}.between: no node {node!r}{_near(node, names)}"
        if link.between[0] == link.between[1]:
            yield f"links.{name}.between: both ends are {link.between[0]!r}"
        for suffix in "ab":
            if f"w{name}{suffix}" in names:
                yield f"nodes.w{name}{suffix}: the name is taken by link {name}'s wire; rename it"
        if link.reverse is not None and link.direction != "both":
            yield f"links.{name}.direction: leave it out when there is a reverse table"
        for suffix, side in _sides(link):
            key = f"links.{name}{suffix}"
            yield from _side_faults(key, side, s)
            yield from _merged_faults(key, side, link)
        yield from _queue_place_faults(s, name, link)
    yield from _connection_faults(s)


def _too_fast(rate: int, s: Scenario) -> bool:
    return rate > s.fast_bps and not s.allow_fast


def _side_faults(key: str, side: Side, s: Scenario) -> Iterator[str]:
    if side.rate is not None and _too_fast(side.rate, s):
        yield (
            f"{key}.rate: {units.format_rate(side.rate)} is more than 100 Mbit/s for each of "
            f"gips ({s.gips}), of which the virtual processor forwards about 1.4 Gbit/s in all: "
            "lower it, raise gips or set allow_fast = true"
        )
    if side.delay is not None and side.delay > 60 * 10**6:
        yield f"{key}.delay: {units.format_time(side.delay)} is out of range; 0 to 60s one way"
    laws = [n for n in ("ber", "loss", "gilbert", "drop") if getattr(side, n) is not None]
    if len(laws) > 1:
        hint = "; write the good state's as good_ber or good_loss" if "gilbert" in laws else ""
        yield f"{key}: {' and '.join(laws)} exclude each other{hint}"
    if side.min_len is not None and side.drop is None:
        yield f"{key}.min_len: only has a meaning beside drop"
    if side.gilbert is not None:
        yield from _gilbert_faults(f"{key}.gilbert", side.gilbert)


def _merged_faults(key: str, side: Side, link: Link) -> Iterator[str]:
    def own_or_link(name: str) -> object:
        own: object = getattr(side, name)
        return own if own is not None else getattr(link, name)

    qdisc, buffer = own_or_link("qdisc"), own_or_link("buffer")
    if own_or_link("rate") is None:
        for name in ("buffer", "qdisc", "ecn"):
            if getattr(side, name) is not None:
                yield f"{key}.{name}: has no meaning without rate; give the link a rate"
    elif own_or_link("ecn") and qdisc not in ("codel", "fq_codel", "red"):
        yield f"{key}.ecn: needs qdisc codel, fq_codel or red"
    if qdisc not in (None, "droptail") and getattr(buffer, "kind", "") == "bytes":
        yield f"{key}.buffer: {qdisc} counts packets; write for example 100pkt or 1BDP"
    if side.reorder and not own_or_link("delay"):
        yield f"{key}.reorder: frames overtake by skipping the delay; give the link a delay"


def _queue_place_faults(s: Scenario, name: str, link: Link) -> Iterator[str]:
    """What a queue on a node's own device asks for."""
    key = f"links.{name}"
    if link.queue == "wire":
        for suffix, side in _sides(link):
            if side.frame_time is not None:
                yield f"{key}{suffix}.frame_time: needs queue host or shared"
        return
    if link.rate is None:
        yield f"{key}.queue: {link.queue} needs a rate"
    for suffix, side in _sides(link):
        if getattr(side.buffer, "kind", "") == "bytes":
            yield f"{key}{suffix}.buffer: a device counts packets; write for example 100pkt or 1BDP"
        if side.qdisc in ("red", "cake"):
            yield f"{key}{suffix}.qdisc: {side.qdisc} is not offered on a node's own device"
    if link.queue == "shared" and link.reverse is not None:
        for field in ("rate", "frame_time"):
            if getattr(link.reverse, field) is not None:
                yield f"{key}.reverse.{field}: both directions share one medium; leave it out"
    yield from _own_device_faults(s, name, link)


def _own_device_faults(s: Scenario, name: str, link: Link) -> Iterator[str]:
    """What a node with a link's queue on its device cannot have beside it."""
    for node in link.between[:1] if link.queue == "shared" else link.between:
        if node in s.nodes and s.nodes[node].qdisc != "noqueue":
            yield f"nodes.{node}.qdisc: its device has the queue of {name}; set links.{name}.qdisc"
    if f"{name}m" in s.links:
        yield f"links.{name}m: the name is taken by {name}'s second device; rename it"
    for i, event in enumerate(s.events):
        if event.link == name and (event.outage is None or event.mode != "drop"):
            yield f"events.{i}: with queue {link.queue} a link can only have outages that drop"


def _gilbert_faults(key: str, law: GilbertModel) -> Iterator[str]:
    for name in ("good", "bad"):
        if getattr(law, name) <= 0:
            yield f"{key}.{name}: a mean dwell time is more than 0"
    if (law.bad_ber is None) == (law.bad_loss is None):
        yield f"{key}: give exactly one of bad_ber and bad_loss"
    if law.good_ber is not None and law.good_loss is not None:
        yield f"{key}: give at most one of good_ber and good_loss"


def reachable(s: Scenario, start: str) -> set[str]:
    """All nodes that ``start`` can reach through routers."""
    seen, edge = {start}, [start]
    while edge:
        at = edge.pop()
        if at != start and s.nodes[at].role != "router":
            continue
        for link in s.links.values():
            if at in link.between:
                fresh = (set(link.between) & set(s.nodes)) - seen
                seen |= fresh
                edge += fresh
    return seen


def _connection_faults(s: Scenario) -> Iterator[str]:
    ends = [(f"flows.{i}", f.from_, f.to) for i, f in enumerate(s.flows)]
    ends += [(f"cross.{i}", c.from_, c.to) for i, c in enumerate(s.cross)]
    for key, src, dst in ends:
        unknown = [n for n in (src, dst) if n not in s.nodes]
        for node in unknown:
            yield f"{key}: no node {node!r}{_near(node, s.nodes)}"
        if unknown:
            continue
        for node in (src, dst):
            if s.nodes[node].role != "host":
                yield f"{key}: {node!r} is a router; connections end at nodes with role host"
        if src == dst:
            yield f"{key}: from and to are the same node"
        elif dst not in reachable(s, src):
            yield f"{key}: no path from {src!r} to {dst!r}; add a link (only routers forward)"


def event_end(event: Event) -> int:
    """When an event's own stretch of time is over, in microseconds."""
    if event.outage is not None:
        return event.at + event.outage
    return event.at + event.handoff.gap if event.handoff is not None else event.at


def directions(name: DirectionName) -> tuple[int, ...]:
    """0 forward, 1 reverse."""
    return {"both": (0, 1), "forward": (0,), "reverse": (1,)}[name]


def _event_faults(s: Scenario) -> Iterator[str]:
    busy: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for i, event in enumerate(s.events):
        key = f"events.{i}"
        what = [n for n in ("outage", "rate", "delay", "handoff") if getattr(event, n) is not None]
        if len(what) != 1:
            yield f"{key}: give exactly one of outage, rate, delay, handoff"
            continue
        if event.every == 0:
            yield f"{key}.every: a time above 0; leave it out for an event that happens once"
        if event.link not in s.links:
            yield f"{key}.link: no link {event.link!r}{_near(event.link, s.links)}"
            continue
        yield from _event_time_faults(key, event, s.duration)
        yield from _event_link_faults(key, event, s.links[event.link], s)
        for side in directions(event.direction):
            busy.setdefault((event.link, side), []).append((event.at, event_end(event), i))
    yield from _overlaps(busy)
    yield from _jitter_faults(s)


def _jitter_faults(s: Scenario) -> Iterator[str]:
    """A link's events move together, else they could come to overlap."""
    for name in dict.fromkeys(e.link for e in s.events):
        if len({e.jitter for e in s.events if e.link == name}) > 1:
            yield f"events: those of link {name} differ in jitter; give all of them the same"


def _event_time_faults(key: str, event: Event, duration: int) -> Iterator[str]:
    if event.at >= duration:
        yield f"{key}.at: not before the experiment's end ({units.format_time(duration)})"
    elif event_end(event) + event.jitter > duration:
        yield f"{key}: lasts beyond the experiment's end ({units.format_time(duration)})"


def _overlaps(busy: dict[tuple[str, int], list[tuple[int, int, int]]]) -> Iterator[str]:
    for (link, _), spans in busy.items():
        for (_, end, first), (start, _, second) in itertools.pairwise(sorted(spans)):
            if start < end:
                yield f"events.{second}: overlaps events.{first} on link {link}; keep them apart"


def _event_link_faults(key: str, event: Event, link: Link, s: Scenario) -> Iterator[str]:
    handoff = event.handoff
    rate = event.rate if handoff is None else handoff.rate
    delay = event.delay if handoff is None else handoff.delay
    sides = [link.reverse if d and link.reverse else link for d in directions(event.direction)]
    if rate is not None and any(side.rate is None and link.rate is None for side in sides):
        yield f"{key}: link {event.link} has no rate to change; give it one"
    if rate is not None and _too_fast(rate, s):
        yield f"{key}: a rate above 100 Mbit/s for each of gips needs allow_fast = true"
    if delay is not None and delay > 60 * 10**6:
        yield f"{key}: a delay is 0 to 60s one way"
    if event.outage == 0:
        yield f"{key}.outage: an outage lasts longer than 0"
    if handoff is not None and handoff.rate is None and handoff.delay is None and not handoff.gap:
        yield f"{key}.handoff: changes nothing; give gap, rate or delay"
    hold = (event.outage and event.mode == "hold") or (handoff and handoff.inflight == "hold")
    qdiscs = {side.qdisc or link.qdisc for side in sides}
    if hold and qdiscs - {None, "droptail"}:
        yield f"{key}: holding frames needs qdisc droptail on link {event.link}; or use mode drop"
    if rate is not None and "cake" in qdiscs:
        yield f"{key}: cake shapes to the rate it began with; take another qdisc on {event.link}"
    if event.outage is None and event.mode == "hold":
        yield f"{key}.mode: belongs to outage; a handoff says inflight"


def _flow_faults(s: Scenario) -> Iterator[str]:
    for i, flow in enumerate(s.flows):
        yield from _one_flow_faults(f"flows.{i}", flow, s.duration)
    for i, cross in enumerate(s.cross):
        stop = s.duration if cross.stop is None else cross.stop
        if not cross.start < stop <= s.duration:
            yield f"cross.{i}: start comes before stop, and stop not after the experiment's end"
        if cross.size > MAX_UDP_BYTES[s.ip]:
            yield f"cross.{i}.size: at most {MAX_UDP_BYTES[s.ip]} over IPv{s.ip}"
    if all(flow.role != "measured" for flow in s.flows):
        yield "flows: none has role measured"


def _one_flow_faults(key: str, flow: Flow, duration: int) -> Iterator[str]:
    last_start = flow.start + flow.spacing * (flow.count - 1) + flow.jitter
    stop = duration if flow.stop is None else flow.stop
    if flow.size is not None and flow.stop is not None:
        yield f"{key}: bytes and stop exclude each other"
    if flow.size == 0:
        yield f"{key}.bytes: send at least one byte"
    if stop > duration:
        yield f"{key}.stop: after the end of the experiment ({units.format_time(duration)})"
    if last_start + LEAST_FLOW_US >= stop:
        yield (
            f"{key}: may not start before it stops: start, spacing and jitter make up to"
            f" {units.format_time(last_start)}"
        )
    if not 1000 <= flow.sample <= 60 * 10**6:
        yield f"{key}.sample: 1ms to 60s"
    for at in [*(p.at for p in flow.pause), *(w.at for w in flow.switch)]:
        if at >= stop - flow.start:
            yield f"{key}: a pause or switch at {units.format_time(at)} is after its end"


def _trace_faults(s: Scenario) -> Iterator[str]:
    capture = s.trace.capture
    if isinstance(capture, bool):
        return
    if capture.link not in s.links:
        yield f"trace.capture.link: no link {capture.link!r}{_near(capture.link, s.links)}"
    elif capture.node not in s.links[capture.link].between:
        ends = " and ".join(s.links[capture.link].between)
        yield f"trace.capture.node: {capture.node!r} is not an end of {capture.link} ({ends})"


def _expect_faults(s: Scenario) -> Iterator[str]:
    seen: set[str] = set()
    for i, claim in enumerate(s.expect):
        if claim.id in seen:
            yield f"expect.{i}.id: {claim.id!r} is used twice"
        seen.add(claim.id)
        yield from (f"expect.{i}{fault}" for fault in claim.faults())
        for table in ("where", "against"):
            for key in getattr(claim, table):
                if key not in s.sweep and not _exists(s, key):
                    yield f"expect.{i}.{table}: {key!r} is not swept{_near(key, s.sweep)}"


def _exists(s: Scenario, key: str) -> bool:
    at: Any = s.raw
    for part in key.split("."):
        if isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict) and part in at:
            at = at[part]
        else:
            return False
    return True


def json_schema() -> str:
    """The scenario language as JSON schema, as published in ``testbed/schema/``."""
    schema = Scenario.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_PATH.parent.mkdir(parents=True, exist_ok=True)
    SCHEMA_PATH.write_text(json_schema())
