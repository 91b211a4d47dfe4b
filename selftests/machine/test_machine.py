"""The guest that plays a real machine: `make check-packaging` runs this."""

from __future__ import annotations

import pytest
from machine import Machine, MachineError

pytestmark = pytest.mark.machine

MACHINE = Machine("trixie", ("iproute2", "python3-minimal"))


def test_a_script_gets_its_files_and_leaves_results() -> None:
    script = """
        cat word; echo oops >&2; cp word out/again; ip -br link show lo
        setsid sleep 1000 &
        test -t 1; echo "$?"; exit "$(cat n)"
    """
    result = MACHINE.run(script, {"word": b"hello\n", "n": b"3"})
    assert result.status == 3
    assert result.files == {"again": b"hello\n"}
    assert result.stdout.startswith("hello\noops\nlo ")
    assert result.stdout.endswith("\n1\n")
    with pytest.raises(MachineError, match="status 3"):
        result.check()


def test_the_kernel_is_the_installed_package() -> None:
    script = 'r=$(uname -r); dpkg -S "/boot/vmlinuz-$r"; modinfo -n tcp_bbr'
    said = MACHINE.run(script).check().stdout
    assert f"linux-image-{MACHINE.release()}" in said
    assert f"/lib/modules/{MACHINE.release()}/kernel/net/ipv4/tcp_bbr.ko" in said


def test_changes_stay_on_a_disk_of_its_own_and_nowhere_else() -> None:
    with MACHINE.disk() as disk:
        MACHINE.run("echo kept >/etc/kept", disk=disk).check()
        assert MACHINE.run("cat /etc/kept", disk=disk).check().stdout == "kept\n"
    assert MACHINE.run("cat /etc/kept").status != 0


def test_a_crash_is_an_error_that_shows_the_console() -> None:
    with pytest.raises(MachineError, match=r"sysrq triggered crash(.|\n)*said:\nbefore"):
        MACHINE.run("echo before; sleep 1; echo c >/proc/sysrq-trigger; sleep 60")


def test_a_hang_is_an_error_that_shows_what_was_said() -> None:
    with pytest.raises(MachineError, match=r"not done after 20 s(.|\n)*said this"):
        MACHINE.run("echo said this; sleep 1000", timeout_s=20)
