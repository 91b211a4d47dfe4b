"""Archive writer, progress line, command line: small parts with promises of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airlab import cpio, kernels
from airlab.campaign import Options, parse_sets
from airlab.engines import EngineError, Watch, qemu
from airlab.model import EXIT_USAGE, AirlabError
from airlab.progress import Progress


def test_an_archive_is_reproducible_and_has_its_parents() -> None:
    entries = [cpio.regular("a/b/c", b"text", 0o755), cpio.link("a/l", "b/c"), cpio.folder("d")]
    one, two = io.BytesIO(), io.BytesIO()
    cpio.write(one, entries)
    cpio.write(two, entries)
    assert one.getvalue() == two.getvalue()
    names = _names(one.getvalue())
    assert names == ["a", "a/b", "a/b/c", "a/l", "d", "TRAILER!!!"]
    assert len(one.getvalue()) % 512 == 0, "archives are put behind each other"


def _names(data: bytes) -> list[str]:
    """The names of a newc archive, read by its own header fields."""
    found, at = [], 0
    while not found or found[-1] != "TRAILER!!!":
        assert data[at : at + 6] == b"070701"
        size, length = (int(data[at + i : at + i + 8], 16) for i in (54, 94))
        found.append(data[at + 110 : at + 110 + length - 1].decode())
        at += (110 + length + 3) // 4 * 4
        at += (size + 3) // 4 * 4
    return found


def test_progress_counts_running_and_finished_cells() -> None:
    stream = io.StringIO()
    progress = Progress(4, 60.0, stream)
    progress.advance("a", 30.0)
    progress.finish("b")
    progress.finish("c", failed=True)
    line = progress.line()
    assert line.startswith("2/4 runs, 1 failed, 150 of 240 virtual s")
    assert line.endswith("left")


@pytest.mark.parametrize("word", ["nosign", "=value"])
def test_a_bad_override_is_explained(word: str) -> None:
    with pytest.raises(AirlabError, match="KEY=VALUE"):
        parse_sets([word])


def test_switches_become_overrides() -> None:
    made = Options(sets=["duration=5s"], trace=False, keep_pcap=True).overrides()
    assert made["duration"] == "5s"
    assert made["trace.acks"] == "false"
    assert made["trace.keep_pcap"] == "true"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nosuch"], "no scenario named 'nosuch'"),
        (["run", "demo", "--set", "links.air.bre=1"], "did you mean 'ber'"),
        (["run", "demo", "--cc", "nosuch"], "nosuch"),
        (["verify", "nosuch"], "no figure named 'nosuch'"),
        (["report", "/nonexistent"], "no such file"),
        (["kernels", "--fetch", "9.9"], "no kernel series '9.9'"),
    ],
)
def test_wrong_use_is_a_message_and_status_2(words: list[str], said: str) -> None:
    done = _airlab(*words)
    assert done.returncode == EXIT_USAGE
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_lists_and_drawings_come_out() -> None:
    assert "demo" in _airlab("list").stdout
    assert "netem" in _airlab("show", "demo").stdout


def _airlab(*words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("airlab")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("airlab run wlan-s", ["wlan-small-queues"]),
        ("airlab run demo --cc j,cub", ["j,cubic"]),
        ("airlab verify tcp-j", ["tcp-j-fig9-table2"]),
        ("airlab kernels --fetch debug-kc", ["debug-kcsan"]),
        ("airlab run /nowhere/", []),
        ("ccscope exp", ["explain", "export"]),
        ("ccscope export folder --format p", ["pcapng", "perfetto"]),
    ],
)
def test_the_shell_is_told_how_words_can_end(tmp_path: Path, line: str, words: list[str]) -> None:
    told = tmp_path / "told"
    command = Path(sys.executable).parent / line.split(maxsplit=1)[0]
    # What argcomplete's shell function does: the line in the environment, the answer from fd 8.
    asked = {
        **{"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "COMP_TYPE": "9"},
        **{"COMP_LINE": line, "COMP_POINT": str(len(line))},
        **{"_ARGCOMPLETE_IFS": "\v", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"},
    }
    script = 'exec "$1" 8>"$2" 9>/dev/null'
    subprocess.run(
        ["bash", "-c", script, "bash", str(command), str(told)],
        check=True,
        env={**os.environ, **asked},
    )
    assert sorted(word.strip() for word in told.read_text().split("\v") if word) == words


def test_a_kernel_of_an_older_airlab_is_fetched_again(tmp_path: Path) -> None:
    kernel = kernels.LabKernel("6.12.0", "trixie", tmp_path)
    assert not kernels._complete(kernel)
    record = {"release": "6.12.0", "suite": "trixie", "package": "x"}
    (tmp_path / "package.json").write_text(json.dumps(record))
    assert not kernels._complete(kernel)
    record["modules"] = " ".join(kernels.GUEST_MODULES)
    (tmp_path / "package.json").write_text(json.dumps(record))
    assert kernels._complete(kernel)


@pytest.mark.parametrize(("waited_s", "hangs"), [((90.0, 0.0), False), ((90.0, 90.0), True)])
def test_an_ending_guest_does_not_count_as_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited_s: tuple[float, float], hangs: bool
) -> None:
    """Long starved of a processor, then without threads: that is no 90 s of silence."""
    console = tmp_path / "console.log"
    console.touch()
    answers = iter(waited_s)
    monkeypatch.setattr(qemu, "_starved_s", lambda _pid: next(answers, waited_s[-1]))
    patience_s = 0.1 if hangs else 30.0
    guest = ["sh", "-c", f"echo word >>{console}; sleep 1"]
    if hangs:
        with pytest.raises(EngineError, match="said nothing"):
            qemu._attend(guest, (), console, Watch(), patience_s)
    else:
        qemu._attend(guest, (), console, Watch(), patience_s)
