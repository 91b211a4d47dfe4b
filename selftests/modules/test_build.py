"""The modules under sparse, in the Debian root that they are built in.

(A build with W=1 and every warning an error is how they are built for the guests anyway;
checkpatch comes only with the kernel's source: `make -C modules checkpatch`.)
"""

from __future__ import annotations

import pytest
from airlab import kernels, paths
from airlab.host import run_root
from airlab.labroot import copy_tree_into, ensure_root

pytestmark = pytest.mark.guest


def test_sparse_has_nothing_to_say() -> None:
    kernel = kernels.find(None)
    root = ensure_root(kernel.suite)
    folders = [
        copy_tree_into(root, paths.MODULES_SOURCE, "sparse-modules"),
        copy_tree_into(root, paths.METER_SOURCE, "sparse-ccmeter"),
    ]
    options = [
        f"KDIR=/lib/modules/{kernel.release}/build",
        "MODULES=/build/sparse-modules",
        "sparse",
    ]
    try:
        for folder in folders:
            said = root.chroot(["make", "-C", f"/build/{folder.name}", *options], what="sparse")
            assert "CHECK" in said, "sparse did not run"
            assert "warning:" not in said, said
    finally:
        run_root(["rm", "-rf", *folders], what="clearing")
