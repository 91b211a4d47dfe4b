"""The machine with Secure Boot: firmware with Microsoft's keys, Debian's signed shim and GRUB.

Firmware, shim, GRUB and MokManager are Debian packages, taken apart and not installed.  They are
started from a FAT folder; MokManager, which asks a person, is answered on the serial line.
"""

from __future__ import annotations

import codecs
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import KERNEL_ARGS, OUT_MB, Machine, MachineError, Result, read_result, write_initrd

DOWN = "\x1b[B"
ENTER = "\r"


@dataclass(frozen=True)
class Firmware:
    """Where a root holds the packages ovmf, shim-signed, shim-helpers and grub-efi signed."""

    root: Path

    @property
    def code(self) -> Path:
        """The firmware itself."""
        return self.root / "usr/share/OVMF/OVMF_CODE_4M.ms.fd"

    def fresh_variables(self, target: Path) -> None:
        """Its variables as delivered: Secure Boot on, Microsoft's keys, no key of ours."""
        shutil.copy(self.root / "usr/share/OVMF/OVMF_VARS_4M.ms.fd", target)

    def fill(self, folder: Path, home: Path, initrd: Path, arguments: str) -> None:
        """An EFI system partition that boots the machine's kernel."""
        boot, debian = folder / "EFI/BOOT", folder / "EFI/debian"
        boot.mkdir(parents=True)
        debian.mkdir()
        shim = self.root / "usr/lib/shim"
        grub = self.root / "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
        shutil.copy(shim / "shimx64.efi.signed", boot / "BOOTX64.EFI")
        shutil.copy(shim / "mmx64.efi.signed", boot / "mmx64.efi")
        shutil.copy(grub, boot / "grubx64.efi")
        shutil.copy(home / "vmlinuz", folder / "vmlinuz")
        shutil.copy(initrd, folder / "initrd")
        config = f"linux /vmlinuz {arguments}\ninitrd /initrd\nboot\n"
        (debian / "grub.cfg").write_text(config)


@dataclass(frozen=True)
class Answer:
    """What to type when something appears on the screen."""

    seen: str
    keys: str


def boot(
    guest: Machine,
    firmware: Firmware,
    *,
    variables: Path,
    script: str,
    files: Mapping[str, bytes],
    disk: Path,
    timeout_s: float,
    answers: Sequence[Answer] = (),
) -> tuple[Result | None, str]:
    """Boot through firmware, shim and GRUB; returns what the script left, and the screen.

    With ``answers`` the machine is left after the last one has restarted it: no result.

    Raises:
        MachineError: as :meth:`machine.Machine.run`, or an answer was not asked for.
    """
    home = guest.ensure()
    with tempfile.TemporaryDirectory(prefix="machine-") as name:
        scratch = Path(name)
        initrd, out, stdout = scratch / "initrd", scratch / "out.raw", scratch / "stdout"
        write_initrd(initrd, home / "initrd.cpio", script, files)
        with out.open("wb") as file:
            file.truncate(OUT_MB << 20)
        firmware.fill(scratch / "esp", home, initrd, " ".join(KERNEL_ARGS))
        line = scratch / "serial"
        command = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"),
            *("-accel", "tcg,thread=multi", "-M", "q35,smm=on", "-cpu", "max"),
            *("-global", "driver=cfi.pflash01,property=secure,value=on"),
            *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={firmware.code}"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={variables}"),
            *("-m", f"{guest.memory_mb}M", "-nodefaults", "-display", "none", "-no-reboot"),
            *("-nic", "none"),
            *("-drive", f"file={disk},format=raw,if=virtio"),
            *("-drive", f"file={out},format=raw,if=virtio,cache=unsafe"),
            *("-drive", f"file=fat:rw:{scratch / 'esp'},format=raw,if=none,id=esp"),
            *("-device", "ide-hd,drive=esp,bootindex=0"),
            *("-chardev", f"socket,id=line,path={line},server=on,wait=on"),
            *("-serial", "chardev:line", "-serial", f"file:{stdout}"),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
        )
        try:
            screen = _talk(process, line, timeout_s, answers)
        finally:
            if process.poll() is None:
                process.kill()
            said = process.communicate()[1].decode(errors="replace")
        if process.returncode > 0:
            raise MachineError(f"QEMU ended with status {process.returncode}: {said}")
        if answers:
            return None, screen
        text = stdout.read_text(errors="replace") if stdout.exists() else ""
        return read_result(out, text, screen), screen


def _talk(
    process: subprocess.Popen[bytes], line: Path, timeout_s: float, answers: Sequence[Answer]
) -> str:
    """Read the serial line until the machine is off, and answer what is asked."""
    end = time.monotonic() + timeout_s
    while not line.exists() and process.poll() is None:
        time.sleep(0.05)
    waiting = list(answers)
    keys: list[str] = []
    screen, unread = "", ""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(str(line))
        # Shorter than the countdown that MokManager shows.  QEMU drops what is not read at once,
        # so keys go out one by one in the pauses.
        talk.settimeout(0.4)
        while time.monotonic() < end:
            try:
                data = talk.recv(1 << 16)
            except TimeoutError:
                if keys:
                    talk.sendall(keys.pop(0).encode())
                elif waiting and re.search(waiting[0].seen, _plain(unread), re.DOTALL):
                    keys = re.findall(r"\x1b\[.|.|\r", waiting.pop(0).keys)
                    unread = ""
                continue
            if not data:
                break
            text = decoder.decode(data)
            screen += text
            unread += text
        else:
            raise MachineError(f"not done after {timeout_s:.0f} s; the screen:\n{_plain(screen)}")
    if waiting:
        raise MachineError(f"never saw {waiting[0].seen!r}; the screen:\n{_plain(screen)}")
    return _plain(screen)


def _plain(screen: str) -> str:
    """The screen without terminal controls."""
    return re.sub(r"\x1b\[[0-9;=?]*[A-Za-z]", "", screen)
