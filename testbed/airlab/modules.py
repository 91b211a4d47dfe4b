"""Building our kernel modules against a kernel's headers, in a root of its suite."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airlab import paths
from airlab.host import run_root
from airlab.kernels import LabKernel
from airlab.labroot import LabRoot, copy_tree_into, ensure_root, tree_digest

STRICT = ("W=1", "KCFLAGS=-Werror")
"""How modules are always built: more warnings than usual, and each of them an error."""


@dataclass(frozen=True)
class Workshop:
    """Copies of ``modules/`` and of test modules in a root, with what ``make`` is told.

    Attributes:
        root: where the compiler and the headers are.
        folders: the copies, as the host sees them; ``modules/`` is the first.
        options: ``KDIR=`` and ``MODULES=``.
    """

    root: LabRoot
    folders: tuple[Path, ...]
    options: tuple[str, ...]

    def make(
        self, *words: str, what: str = "building", folders: Sequence[Path] | None = None
    ) -> str:
        """Run ``make`` in each folder, or in some; returns what was said.

        Raises:
            AirlabError: a build failed; the message carries the compiler's last words.
        """
        said = []
        for folder in self.folders if folders is None else folders:
            command = ["make", "-C", f"/build/{folder.name}", *self.options, *words]
            said.append(self.root.chroot(command, what=f"{what} {folder.name}"))
        return "".join(said)

    def built(self) -> list[Path]:
        """The modules that are there."""
        return [module for folder in self.folders for module in sorted(folder.rglob("*.ko"))]

    def answers(self) -> dict[str, int]:
        """What the probes of the headers found, by ``AIRTCP_HAVE_NAME``'s NAME."""
        text = (self.folders[0] / "generated" / "airtcp-probes.h").read_text()
        words = (line.split() for line in text.splitlines() if line.startswith("#define AIRTCP_H"))
        return {name.removeprefix("AIRTCP_HAVE_"): int(value) for _, name, value in words}

    def clear(self) -> None:
        """Remove the copies."""
        run_root(["rm", "-rf", "--one-file-system", *self.folders], what="clearing a build")


def workshop(root: LabRoot, kdir: str, tag: str, others: Sequence[Path]) -> Workshop:
    """Copy ``modules/`` and some test modules into a root, for the headers at ``kdir`` there.

    ``tag`` keeps the copies apart from those of other builds in the same root.
    """
    name = f"modules-{tag}"
    folders = [copy_tree_into(root, paths.MODULES_SOURCE, name)]
    folders += [copy_tree_into(root, other, f"{other.name}-{tag}") for other in others]
    return Workshop(root, tuple(folders), (f"KDIR={kdir}", f"MODULES=/build/{name}"))


def build(kernel: LabKernel) -> Path:
    """Build all modules for a kernel unless the sources are unchanged.

    Returns:
        The folder that holds the ``*.ko`` files.
    """
    target = kernel.path / "built"
    sources = [p for p in (paths.MODULES_SOURCE, paths.METER_SOURCE) if p.is_dir()]
    stamp = target / "sources.sha256"
    digest = tree_digest(*sources)
    if stamp.is_file() and stamp.read_text() == digest:
        return target
    print(f"airlab: building the modules for {kernel.release}", flush=True)
    root = ensure_root(kernel.suite)
    shop = workshop(root, headers_of(kernel), kernel.release, [paths.METER_SOURCE])
    shop.make(*STRICT)
    built = shop.built()
    inside = [f"/{module.relative_to(root.path)}" for module in built]
    # Debug information is most of a module's size, and size is boot time.
    root.chroot(["strip", "--strip-debug", *inside], what="stripping the modules")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for module in built:
        shutil.copy(module, target / module.name)
    stamp.write_text(digest)
    return target


def headers_of(kernel: LabKernel) -> str:
    """Where a kernel's headers are inside the root of its suite."""
    return f"/lib/modules/{kernel.release}/build"


def other_headers(root: LabRoot, kind: str, release: str, name: str) -> str:
    """Make headers as in another tree: see selftests/modules/other-headers.sh for the kinds.

    Returns:
        The build directory inside the root.
    """
    script = (paths.TEST_MODULES_SOURCE / "other-headers.sh").read_text()
    said = root.chroot(["sh", "-c", script, "sh", kind, release, name], what="changing headers")
    return said.strip()
