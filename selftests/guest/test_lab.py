"""The laboratory itself: what it must refuse, report, clean up and repeat."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airlab.engines import EngineError, Watch
from airlab.image import Image
from airlab.labroot import copy_tree_into, ensure_root
from guestlab import FLOW, Edit, Files, Lab, View, path, schedule

pytestmark = pytest.mark.guest

SHORT = path("short", "2s")
GUARD_S = 240.0
"""Wall seconds after which a wait for another process has failed."""


def _refused(lab: Lab, edit: Edit, watch: Watch | None = None) -> tuple[EngineError, Path]:
    """The error of a run that must fail, and its folder."""
    scratch = lab.scratch("refused")
    with pytest.raises(EngineError) as failed:
        lab.engine.run(lab.plan(SHORT, edit=edit), scratch, watch or Watch(), lab.slot)
    return failed.value, scratch


# A link that is not what the scenario says ----------------------------------------------------

PAIR = """
[nodes.a{n}]
[nodes.b{n}]
[links.l{n}]
between = ["a{n}", "b{n}"]
rate = "5Mbit"
delay = "25ms"
buffer = "30pkt"
"""
PAIRS = """
schema = 1
name = "pairs"
title = "Four equal links, apart from each other"
purpose = "Does the audit find the one that was changed?"
duration = "2s"
cc = ["reno"]
""" + "".join(PAIR.format(n=n) for n in range(1, 5))
PAIR_FLOWS = "".join(f'[[flows]]\nfrom = "a{n}"\nto = "b{n}"\n' for n in range(1, 5))


def _tamper(files: Files) -> None:
    """Link 1 as it should be, 2 too slow, 3 too long, 4 with less room: forward only."""
    text = files["setup.sh"].decode()
    for link, old, new in (
        (2, "netem rate 5000000bit limit 30", "netem rate 4900000bit limit 30"),
        (3, "netem delay 25000us", "netem delay 26000us"),
        (4, "netem rate 5000000bit limit 30", "netem rate 5000000bit limit 28"),
    ):
        at = text.index(old, text.index(f"# link l{link}\n"))
        text = text[:at] + new + text[at + len(old) :]
    files["setup.sh"] = text.encode()


@pytest.fixture(scope="module")
def tampered(lab: Lab) -> View:
    return lab.cell(PAIRS + PAIR_FLOWS, cc="reno", edit=_tamper)


@pytest.mark.parametrize("check", ["rate p2", "rtt p3", "buffer p4"])
def test_a_wrong_link_is_named_by_the_audit(tampered: View, check: str) -> None:
    assert tampered.cell["audit"]["verdict"] == "veto"
    assert {f"before {check}", f"after {check}"} <= set(tampered.failed_checks())


def test_a_right_link_beside_wrong_ones_is_not_named(tampered: View) -> None:
    assert [name for name in tampered.failed_checks() if name.endswith("p1")] == []
    wrong = {name.split(" ", 1)[1] for name in tampered.failed_checks() if " p" in name}
    assert wrong == {"rate p2", "rtt p3", "buffer p4"}


# Guests that fail -----------------------------------------------------------------------------


def test_a_failing_setup_step_is_reported_with_its_message(lab: Lab) -> None:
    def edit(files: Files) -> None:
        files["setup.sh"] += b"ip link set dev nosuch up\n"

    error, _ = _refused(lab, edit)
    assert error.kind == "step"
    assert "setup" in str(error) and 'Cannot find device "nosuch"' in str(error)


def test_a_panic_is_reported_with_the_kernel_log(lab: Lab) -> None:
    def edit(files: Files) -> None:
        files["crash.sh"] = b"echo c >/proc/sysrq-trigger\n"
        schedule(files, 500_000, "-", "crash", "sh /lab/crash.sh")

    error, _ = _refused(lab, edit)
    assert error.kind == "panic"
    assert "Kernel panic - not syncing: sysrq triggered crash" in error.console
    assert "Call Trace" in error.console


WARNER = """
#include <linux/module.h>
static int __init warner_init(void)
{
	WARN(1, "warner: as asked");
	return 0;
}
module_init(warner_init);
static void __exit warner_exit(void) { }
module_exit(warner_exit);
MODULE_LICENSE("GPL");
"""


@pytest.fixture(scope="module")
def warner(image: Image, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A module whose only deed is a WARNING, built for the lab's kernel."""
    source = tmp_path_factory.mktemp("warner")
    (source / "warner.c").write_text(WARNER)
    (source / "Kbuild").write_text("obj-m += warner.o\n")
    root = ensure_root(image.kernel.suite)
    name = f"warner-{os.getpid()}"
    folder = copy_tree_into(root, source, name)
    build = f"/lib/modules/{image.kernel.release}/build"
    try:
        root.chroot(["make", "-C", build, f"M=/build/{name}", "modules"], what="building warner")
        return (folder / "warner.ko").read_bytes()
    finally:
        root.chroot(["rm", "-r", f"/build/{name}"], what="clearing warner")


def test_a_kernel_warning_is_reported_with_its_text(lab: Lab, warner: bytes) -> None:
    def edit(files: Files) -> None:
        files["warner.ko"] = warner
        schedule(files, 500_000, "-", "warn", "insmod /lab/warner.ko")

    error, _ = _refused(lab, edit)
    assert "panic_on_warn set" in error.console
    assert error.kind == "warning"
    assert re.search(r"WARNING: .*warner_init", str(error)), error
    assert "warner: as asked" in error.console


class _HurryAfterStart(threading.Event):
    """Lets the engine's patience end soon once the experiment has begun.

    The engine asks this event many times a second; before the start it must wait as long as
    booting takes on a loaded machine.
    """

    def __init__(self, console: Path) -> None:
        super().__init__()
        self._console = console
        self.watch = Watch(cancel=self)

    def wait(self, timeout: float | None = None) -> bool:
        if self._console.is_file() and "AIRLAB-START" in self._console.read_text():
            self.watch.silence_s = 3.0
        return super().wait(timeout)


def test_a_hanging_guest_is_given_up(lab: Lab) -> None:
    def edit(files: Files) -> None:
        files["stop.sh"] = b"kill -STOP $PPID\n"
        schedule(files, 500_000, "-", "stop", "sh /lab/stop.sh")

    scratch = lab.scratch("hang")
    watch = _HurryAfterStart(scratch / "console.log").watch
    with pytest.raises(EngineError, match="said nothing for 3 s") as failed:
        lab.engine.run(lab.plan(SHORT, edit=edit), scratch, watch, lab.slot)
    assert failed.value.kind == "hang"
    assert "AIRLAB-START" in failed.value.console
    assert _qemus_of(os.getpid()) == []
    assert _named_memory() == []


def test_a_guest_that_ends_without_results_is_reported(lab: Lab) -> None:
    def edit(files: Files) -> None:
        files["off.sh"] = b"poweroff -f\n"
        schedule(files, 500_000, "-", "off", "sh /lab/off.sh")

    error, _ = _refused(lab, edit)
    assert error.kind == "lost"
    assert "without leaving its results" in str(error)


# The command: interruption, resumption, failure, repetition -------------------------------------

AIRLAB = [str(Path(sys.executable).with_name("airlab"))]
EVENTS = """
[[events]]
at = "6s"
link = "air"
outage = "300ms"
[[cross]]
from = "a"
to = "b"
rate = "200kbit"
size = 500
dist = "poisson"
[variants.bad]
cc = "j"
params = { alpha_permille = 5000 }
"""
CHANCE = 'buffer = "40pkt"\nber = 1e-6\nreorder = "0.1%"\nduplicate = "0.1%"'
CAMPAIGN = path("campaign", "12s", link=CHANCE, rest=FLOW + EVENTS)


def _qemus_of(pid: int) -> list[int]:
    """Running QEMUs that are children of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"qemu-system" in words.split(b"\0")[0] and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def _alive(pids: list[int]) -> list[int]:
    """Those of some QEMUs that still run (their numbers may belong to others by now)."""
    found = []
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"qemu-system" in words:
            found.append(pid)
    return found


def _named_memory() -> list[str]:
    return [p.name for p in Path("/dev/shm").iterdir() if "airlab" in p.name]


def _until(true: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition; fail when the process ends first or it takes far too long."""
    end = time.monotonic() + GUARD_S
    while not true():
        if process is not None and process.poll() is not None:
            pytest.fail(f"airlab ended early: {process.communicate()}")
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


class Campaign:
    """``airlab run`` of one scenario into one folder, as often as a test likes."""

    def __init__(self, folder: Path, kernel: str) -> None:
        self.kernel = kernel
        self.out = folder / "out"
        self.file = folder / "campaign.toml"
        self.file.write_text(CAMPAIGN)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [*AIRLAB, "run", str(self.file), "--out", str(self.out)]
        command += ["--jobs", "1", "--no-page", "--kernel", self.kernel, *words]
        # A session of its own, so that a signal to its group is what Ctrl-C is.
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def cells(self) -> list[str]:
        return sorted(p.name for p in (self.out / "cells").glob("*"))

    def running(self, slug: str) -> bool:
        console = self.out / "work" / slug / "console.log"
        return console.is_file() and "AIRLAB-START" in console.read_text(errors="replace")

    def identity(self, slug: str) -> tuple[int, str]:
        file = self.out / "cells" / slug / "cell.json"
        return file.stat().st_mtime_ns, file.read_text()

    def complete(self, slug: str) -> bool:
        folder = self.out / "cells" / slug
        names = ("cell.json", "plan.json", "identity.json", "times.json", "samples.parquet")
        return all((folder / name).is_file() for name in names)


@contextmanager
def _burner(slot: int) -> Iterator[None]:
    """Keep the processor that the guest runs on busy."""
    cores = sorted(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{cores[slot % len(cores)]}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, image: Image) -> Campaign:
    """A campaign with one finished cell, interrupted by Ctrl-C in its second."""
    assert image.initrd.is_file()
    return Campaign(tmp_path_factory.mktemp("campaign"), image.kernel.release)


def _first(campaign: Campaign) -> tuple[list[int], str, str]:
    """Run until the first cell is finished and the second is under way, then press Ctrl-C."""
    process = campaign.start("--cc", "j", "--seeds", "2")
    _until(lambda: campaign.running("j_s2"), process)
    qemus = _qemus_of(process.pid)
    assert len(qemus) == 1, "the test looks for QEMU in the wrong way"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=GUARD_S)
    return qemus, f"{out}\n{err}", str(process.returncode)


def test_the_life_of_a_campaign(campaign: Campaign) -> None:
    """Ctrl-C, a kill, a resumption with a failing cell, a repetition under load.

    One test, since each step needs the folder that the former left.
    """
    qemus, said, status = _first(campaign)
    assert status == "130", said
    assert "FAILED" not in said, said
    assert _alive(qemus) == [], "Ctrl-C left QEMU behind"
    assert _named_memory() == [], "the guest's memory has a name that can be left behind"
    assert campaign.cells() == ["j_s1"]
    assert campaign.complete("j_s1")
    assert not (campaign.out / "failed").exists()
    finished = campaign.identity("j_s1")

    _killed(campaign)
    assert campaign.identity("j_s1") == finished

    _resumed_with_a_failure(campaign)
    assert campaign.identity("j_s1") == finished, "a finished run was run again"

    _seeds_differ(campaign)
    _repeated_under_load(campaign)


def _killed(campaign: Campaign) -> None:
    process = campaign.start("--cc", "j", "--seeds", "2")
    _until(lambda: campaign.running("j_s2"), process)
    qemu = _qemus_of(process.pid)
    assert len(qemu) == 1
    process.kill()
    process.communicate()
    _until(lambda: not _alive(qemu))
    assert campaign.cells() == ["j_s1"]
    assert _named_memory() == []


def _resumed_with_a_failure(campaign: Campaign) -> None:
    process = campaign.start("--cc", "j,bad", "--seeds", "2")
    out, err = process.communicate(timeout=2 * GUARD_S)
    assert process.returncode == 1, (out, err)
    assert "1 finished runs taken over" in out
    assert campaign.cells() == ["j_s1", "j_s2"]
    assert campaign.complete("j_s2")
    assert not any((campaign.out / "work").glob("*"))
    for slug in ("bad_s1", "bad_s2"):
        assert f"FAILED {slug} (step)" in err
        assert (campaign.out / "failed" / slug / "console.log").is_file()
        assert "setup" in (campaign.out / "failed" / slug / "error.txt").read_text()
    summary = json.loads((campaign.out / "summary.json").read_text())
    said = json.dumps(summary)
    assert "bad_s1" in said, "a failed run is a missing row"


def _seeds_differ(campaign: Campaign) -> None:
    hashes = [json.loads(campaign.identity(slug)[1])["hashes"] for slug in ("j_s1", "j_s2")]
    assert hashes[0]["pcap_packets"] > 1000
    for name in ("pcap_sha256", "trace_sha256"):
        assert hashes[0][name] and hashes[0][name] != hashes[1][name]


def _repeated_under_load(campaign: Campaign) -> None:
    command = [*AIRLAB, "verify", str(campaign.out), "--cell", "j_s1", "--jobs", "1"]
    with _burner(0):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["identical"] is True
    for name in ("pcap_sha256", "trace_sha256"):
        assert verdict[name]["before"] == verdict[name]["again"] != ""


def test_verify_tells_a_difference(campaign: Campaign) -> None:
    """The comparison itself: a result whose hash was changed is not identical."""
    if not campaign.complete("j_s2"):
        pytest.skip("the campaign above did not finish")
    file = campaign.out / "cells" / "j_s2" / "cell.json"
    cell = json.loads(file.read_text())
    cell["hashes"]["pcap_sha256"] = "0" * 64
    file.write_text(json.dumps(cell))
    command = [*AIRLAB, "verify", str(campaign.out), "--cell", "j_s2", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "DIFFERENT" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["identical"] is False
