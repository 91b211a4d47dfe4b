"""Building our kernel modules against a lab kernel's headers, in a root of its suite."""

from __future__ import annotations

import shutil
from pathlib import Path

from airlab import paths
from airlab.kernels import LabKernel
from airlab.labroot import copy_tree_into, ensure_root, tree_digest


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
    name = f"modules-{kernel.release}"
    folder = copy_tree_into(root, paths.MODULES_SOURCE, name)
    meter = copy_tree_into(root, paths.METER_SOURCE, f"ccmeter-{kernel.release}")
    options = [
        f"KDIR=/lib/modules/{kernel.release}/build",
        f"MODULES=/build/{name}",
        "W=1",
        "KCFLAGS=-Werror",
    ]
    for part in (name, meter.name):
        root.chroot(["make", "-C", f"/build/{part}", *options], what=f"building {part}")
    built = [*folder.rglob("*.ko"), *meter.rglob("*.ko")]
    inside = [f"/{module.relative_to(root.path)}" for module in built]
    # Debug information is most of a module's size, and size is boot time.
    root.chroot(["strip", "--strip-debug", *inside], what="stripping the modules")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for module in built:
        shutil.copy(module, target / module.name)
    stamp.write_text(digest)
    return target
