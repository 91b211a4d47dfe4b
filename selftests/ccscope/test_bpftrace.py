"""The source bpftrace: the script that is made, and what is read back."""

from __future__ import annotations

import numpy as np
import pytest
from ccscope import bpflines
from ccscope.btf import Btf, running_kernel
from ccscope.errors import CcscopeError
from ccscope.flows import Selection
from ccscope.sources import bpftrace
from ccscope.sources.probes import after_values, common_values


@pytest.fixture(scope="module")
def types() -> Btf:
    try:
        return running_kernel()
    except CcscopeError as error:
        pytest.skip(str(error))


def _script(types: Btf, version: tuple[int, int], selection: Selection | None = None) -> str:
    functions = {"tcp_set_ca_state", "tcp_reno_undo_cwnd"}
    offer = bpftrace.Offer("bpftrace", version, types, functions, True, [])
    return bpftrace.script(offer, selection or Selection())


def test_the_script_prints_what_the_reader_expects(types: Btf) -> None:
    text = _script(types, (0, 23))
    for letter, names in bpftrace.fields(types).items():
        (line,) = [x for x in text.splitlines() if f'printf("{letter} ' in x]
        form = line.split('"')[1]
        assert form.count("%llu") == len(names)
        arguments = line.split('\\n", ', 1)[1]
        assert arguments.count("(uint64)") >= len(names)
        assert ("kstack" in line) == (letter == "C")
    assert text.count("{") == text.count("}")
    assert "fexit:tcp_ack" in text
    assert "kretfunc:tcp_ack" in _script(types, (0, 17))
    assert "nsecs(monotonic)" in text
    assert "nsecs(monotonic)" not in _script(types, (0, 17))
    chosen = _script(types, (0, 23), Selection(ports=(5001,), netns=(77,)))
    assert chosen.count("== 5001") == 2 * 5
    assert chosen.count("== 77") == 5


def test_lines_become_the_columns_of_probe_events(types: Btf) -> None:
    fields = bpftrace.fields(types)
    numbers = {letter: [str(100 + i) for i in range(len(f))] for letter, f in fields.items()}
    text = "\n".join(
        [
            "T 99",
            "A " + " ".join(numbers["A"]),
            "C " + " ".join(numbers["C"]) + " ",
            "        ffffffff81000010",
            "        ffffffff81000020",
            "",
            "A cut",
            "L " + " ".join(numbers["L"]),
        ]
    )
    events, bad = bpflines.parse(text, fields, 1000)
    assert bad == 1
    after = events["ccscope:after"]
    assert set(after) == {*fields["A"], "common_at"}
    for name in (v.name for v in (*common_values(types), *after_values(types))):
        assert after[name].tolist() == [100 + fields["A"].index(name)]
    change, stack = events["ccscope:ca"], events["ftrace:kernel_stack"]
    assert stack["caller"][0] == (0xFFFFFFFF81000010, 0xFFFFFFFF81000020)
    assert stack["common_at"][0] - change["common_at"][0] == 1
    assert events["sock:inet_sock_set_state"]["newstate"].dtype == np.int64
    assert after["saddr6a"].dtype == np.uint64


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(CcscopeError, match="apt-get install bpftrace"):
        bpftrace.offer(per_ack=True)
