"""A guest that plays a real Debian machine.

The measuring guest of ``airlab`` runs in virtual time from a small image.  This one is the
opposite: a full Debian userland on a disk, with dpkg, a packaged kernel in ``/boot`` and
``/lib/modules``, and real time.  Packages are installed in it, hosts are changed in it.

    machine = Machine("trixie", ("iproute2", "python3"))
    result = machine.run("ip -V; echo hello >out/word")
    assert result.status == 0 and result.files["word"] == b"hello\\n"

The script is run by ``/bin/sh`` as root, in ``/run/machine``, where ``files`` lie too; what it
leaves in ``/run/machine/out`` comes back.  There is no systemd and no network but ``lo``.
Each run starts from the same fresh disk, unless it is given one made by :meth:`Machine.disk`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airlab import cpio, paths
from airlab.host import run, run_root
from airlab.labroot import GUEST_SUITE, ensure_root
from airlab.mirrors import find_mirrors

HERE = Path(__file__).resolve().parent

DISK_MB = 6144
"""Size of the root file system; the file is sparse."""

OUT_MB = 512
"""Room for what comes back."""

KERNEL_ARGS = (
    "console=ttyS0",
    "loglevel=5",
    "panic=-1",
    "panic_on_warn=1",
    "oops=panic",
    "hung_task_panic=1",
    "softlockup_panic=1",
    "mitigations=off",
    "tsc=reliable",
    "no_timer_check",
    "cryptomgr.notests",
)

# What the initial RAM disk must load before it sees the disk.
_BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")

_TROUBLE = re.compile(
    r"Kernel panic|BUG:|Oops:|WARNING: (?!CPU features)|"
    r"rcu: INFO: rcu_\w+ (?:self-)?detected stall|general protection fault|"
    r"Unable to handle|soft lockup|blocked for more than"
)
_TAIL_LINES = 60


class MachineError(Exception):
    """The guest panicked, warned, hung or never came to its script."""


@dataclass(frozen=True)
class Result:
    """What a script left: exit status, standard output and error, files by name, console."""

    status: int
    stdout: str
    files: Mapping[str, bytes]
    console: str

    def check(self) -> Result:
        """Itself, if the script succeeded.

        Raises:
            MachineError: it did not; the message carries what it wrote.
        """
        if self.status:
            tail = "\n".join(self.stdout.splitlines()[-_TAIL_LINES:])
            raise MachineError(f"the script ended with status {self.status}:\n{tail}")
        return self


@dataclass(frozen=True)
class Machine:
    """A Debian machine: ``suite``, ``packages`` (apt's words, so ``name/suite`` works, too).

    Args:
        kernel: flavour of the kernel package, as in ``linux-image-FLAVOUR``; with ``/suite``
            behind it, from there.
        headers: install ``linux-headers-FLAVOUR`` as well.
        memory_mb: RAM, MiB.
        cpus: virtual processors, 1 to 4.
    """

    suite: str
    packages: Sequence[str] = ()
    kernel: str = "cloud-amd64"
    headers: bool = False
    memory_mb: int = 2048
    cpus: int = 1

    def run(
        self,
        script: str,
        files: Mapping[str, bytes] | None = None,
        timeout_s: float = 300,
        *,
        disk: Path | None = None,
        keep: bool = True,
        kernel_args: Sequence[str] = (),
        qemu_args: Sequence[str] = (),
    ) -> Result:
        """Boot, run a script, power off.

        Args:
            script: POSIX shell; starts in ``/run/machine``.
            files: put there before, by relative name; all are executable.
            timeout_s: wall seconds for all of it, boot included.
            disk: boot from this disk (see :meth:`disk`) instead of a fresh one.
            keep: keep what is changed on ``disk``.
            kernel_args: more words for the kernel's command line.
            qemu_args: more words for QEMU.

        Raises:
            MachineError: panic, oops, warning, hang or a guest that ended before its script.
        """
        home = self.ensure()
        with tempfile.TemporaryDirectory(prefix="machine-") as scratch_name:
            scratch = Path(scratch_name)
            initrd = scratch / "initrd"
            write_initrd(initrd, home / "initrd.cpio", script, files or {})
            out = scratch / "out.raw"
            with out.open("wb") as file:
                file.truncate(OUT_MB << 20)
            console, stdout = scratch / "console", scratch / "stdout"
            root = f"file={disk or home / 'disk.ext4'},format=raw,if=virtio"
            command = [
                *(["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []),
                *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max"),
                *("-smp", str(self.cpus), "-m", f"{self.memory_mb}M"),
                *("-nodefaults", "-display", "none", "-no-reboot", "-nic", "none"),
                *("-kernel", str(home / "vmlinuz"), "-initrd", str(initrd)),
                *("-append", " ".join([*KERNEL_ARGS, *kernel_args])),
                *("-drive", root + ("" if disk and keep else ",snapshot=on")),
                *("-drive", f"file={out},format=raw,if=virtio,cache=unsafe"),
                *("-serial", f"file:{console}", "-serial", f"file:{stdout}"),
                *qemu_args,
            ]
            _attend(command, console, stdout, timeout_s)
            said = stdout.read_text(errors="replace") if stdout.exists() else ""
            log = console.read_text(errors="replace") if console.exists() else ""
            return read_result(out, said, log)

    @contextlib.contextmanager
    def disk(self) -> Iterator[Path]:
        """A copy of the machine's disk that keeps changes from one run to the next."""
        home = self.ensure()
        with tempfile.TemporaryDirectory(prefix="machine-", dir=home) as scratch:
            copy = Path(scratch) / "disk.ext4"
            run(
                ["cp", "--sparse=always", "--reflink=auto", home / "disk.ext4", copy],
                what="copying the machine's disk",
            )
            yield copy

    def release(self) -> str:
        """The kernel's release."""
        recipe = json.loads((self.ensure() / "recipe.json").read_text())
        return str(recipe["release"])

    def ensure(self) -> Path:
        """The folder of the machine in the cache, made if it is not there."""
        wanted = self._package_names()
        words = [self.suite, *wanted, str(DISK_MB)]
        recipe = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
        home = paths.cache() / "machines" / f"{self.suite}-{recipe}"
        home.parent.mkdir(parents=True, exist_ok=True)
        with open(home.parent / f"{home.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "recipe.json").is_file():
                self._make(home, wanted)
        return home

    def _package_names(self) -> list[str]:
        flavour, slash, suite = self.kernel.partition("/")
        names = [f"linux-image-{flavour}{slash}{suite}", *self.packages]
        if self.headers:
            names.append(f"linux-headers-{flavour}{slash}{suite}")
        return sorted(set(names))

    def _make(self, home: Path, packages: Sequence[str]) -> None:
        print(f"machine: making a Debian {self.suite} machine (2 to 4 minutes)", flush=True)
        partial = home.with_suffix(".partial")
        run_root(["rm", "-rf", "--one-file-system", partial, home], what="clearing")
        partial.mkdir()
        root = partial / "root"
        run_root(
            [
                # In a mount namespace, so that nothing stays mounted when it is killed.
                *("unshare", "--mount", "mmdebstrap", "--mode=root", "--variant=minbase"),
                f"--include={','.join(packages)}",
                *(self.suite.removesuffix("-backports"), root),
                *find_mirrors().sources(self.suite),
            ],
            what=f"making the Debian {self.suite} machine with mmdebstrap",
            remedy="check that this machine's apt can reach its mirror (`apt-get update`)",
        )
        kernel = sorted((root / "boot").glob("vmlinuz-*"))[-1]
        release = kernel.name.removeprefix("vmlinuz-")
        _write_boot_archive(root, release, partial / "initrd.cpio")
        run_root(["cp", kernel, partial / "vmlinuz"], what="copying the kernel")
        listing = run(
            ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W"],
            what="listing the machine's packages",
        )
        image = partial / "disk.ext4"
        run_root(
            ["mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, image, f"{DISK_MB}M"],
            what="packing the machine's disk",
        )
        run_root(["chmod", "0644", image, partial / "vmlinuz"], what="opening the disk to QEMU")
        run_root(["rm", "-rf", "--one-file-system", root], what="removing the unpacked root")
        recipe = {"release": release, "suite": self.suite, "packages": listing.splitlines()}
        (partial / "recipe.json").write_text(json.dumps(recipe, indent=1))
        partial.rename(home)


def files_on(disk: Path) -> dict[str, str]:
    """Every file, folder and link of a machine's disk: path -> type, mode, owner, contents.

    The contents are a link's target or a file's SHA-256. The disk is read from outside, with
    no machine running on it.
    """
    with tempfile.TemporaryDirectory(prefix="files-", dir=disk.parent) as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir()
        run_root(["debugfs", "-R", f"rdump / {tree}", disk], what="reading the machine's disk")
        try:
            named = run_root(
                ["find", tree, "-mindepth", "1", "-printf", r"%P\t%y %m %U:%G %l\n"],
                what="listing the machine's disk",
            )
            sums = run_root(
                ["find", tree, "-type", "f", "-exec", "sha256sum", "--zero", "{}", "+"],
                what="reading the machine's files",
            )
        finally:
            run_root(["rm", "-rf", tree], what="clearing")
    found = dict(line.split("\t", 1) for line in named.splitlines())
    for entry in filter(None, sums.split("\0")):
        digest, _, path = entry.partition("  ")
        found[path.removeprefix(f"{tree}/")] += digest
    return found


def _write_boot_archive(root: Path, release: str, target: Path) -> None:
    """What the initial RAM disks of all runs share: busybox and modules for the disk."""
    busybox = ensure_root(GUEST_SUITE).path / "usr/bin/busybox"
    modules = _boot_modules(root / "usr/lib/modules" / release)
    entries = [
        cpio.regular("bin/busybox", busybox.read_bytes(), 0o755),
        cpio.regular("modules/order", "".join(f"{name}\n" for name in modules).encode()),
        *(cpio.regular(f"modules/{name}", data) for name, data in modules.items()),
    ]
    with target.open("wb") as out:
        cpio.write(out, entries)


def _boot_modules(folder: Path) -> dict[str, bytes]:
    """The modules for the disk by file name, uncompressed, each behind what it needs."""
    needs: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        name, _, rest = line.partition(":")
        needs[name] = rest.split()
    found: dict[str, bytes] = {}
    for wanted in _BOOT_MODULES:
        # What is not there is built into the kernel.
        for name in (n for n in needs if _stem(n) == wanted):
            # modules.dep lists what a module needs from the nearest to the deepest.
            for file in [*reversed(needs[name]), name]:
                data = (folder / file).read_bytes()
                plain = lzma.decompress(data) if file.endswith(".xz") else data
                found.setdefault(f"{_stem(file)}.ko", plain)
    return found


def _stem(file: str) -> str:
    return Path(file).name.split(".ko")[0].replace("-", "_")


def write_initrd(target: Path, boot: Path, script: str, files: Mapping[str, bytes]) -> None:
    """The boot archive with a second one behind it: our two inits, the script, its files."""
    overlay = io.BytesIO()
    entries = [
        cpio.regular("init", (HERE / "boot").read_bytes(), 0o755),
        cpio.regular("machine/init", (HERE / "init").read_bytes(), 0o755),
        cpio.regular("machine/script", script.encode(), 0o755),
    ]
    entries += [cpio.regular(f"machine/{n}", data, 0o755) for n, data in sorted(files.items())]
    cpio.write(overlay, entries)
    target.write_bytes(boot.read_bytes() + overlay.getvalue())


def _attend(command: Sequence[str], console: Path, stdout: Path, timeout_s: float) -> None:
    """Run QEMU to its end, which the guest brings about.

    Raises:
        MachineError: QEMU failed, or the guest took too long.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the guest was not done after {timeout_s:.0f} s of wall time; the script's last "
            f"lines:\n{_tail(stdout)}\nthe console's last lines:\n{_tail(console)}"
        ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        text = said.decode(errors="replace").strip()
        raise MachineError(f"QEMU ended with status {process.returncode}: {text}")


def _tail(file: Path) -> str:
    text = file.read_text(errors="replace") if file.exists() else ""
    return "\n".join(text.replace("\r", "").splitlines()[-_TAIL_LINES:])


def read_result(out: Path, stdout: str, console: str) -> Result:
    """Judge the console and unpack what came back.

    Raises:
        MachineError: the kernel complained, or the script never ended.
    """
    found = _TROUBLE.search(console)
    if found:
        start = console.rfind("\n", 0, found.start()) + 1
        shown = "\n".join(console[start:].replace("\r", "").splitlines()[:_TAIL_LINES])
        raise MachineError(f"the guest's kernel complained:\n{shown}\nthe script said:\n{stdout}")
    if "MACHINE-END" not in console or "MACHINE-LOST" in console:
        tail = "\n".join(console.replace("\r", "").splitlines()[-_TAIL_LINES:])
        raise MachineError(f"the guest ended before its script or lost its results:\n{tail}")
    with tarfile.open(out) as tar:
        kept = {m.name: tar.extractfile(m) for m in tar if m.isfile()}
        data = {name: file.read() for name, file in kept.items() if file}
    status = int(data.pop(".status"))
    return Result(status, stdout, {n.removeprefix("out/"): d for n, d in data.items()}, console)
