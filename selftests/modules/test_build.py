"""The modules under sparse, in the Debian root that they are built in.

(A build with W=1 and every warning an error is how they are built for the guests anyway;
checkpatch comes only with the kernel's source: `make -C modules checkpatch`.)
"""

from __future__ import annotations

import pytest
from airlab import modules, paths
from airlab.kernels import LabKernel
from airlab.labroot import ensure_root

pytestmark = pytest.mark.guest


def test_sparse_has_nothing_to_say(kernel: LabKernel) -> None:
    others = [paths.METER_SOURCE, paths.TSOFLOOR_SOURCE]
    headers = modules.headers_of(kernel)
    shop = modules.workshop(ensure_root(kernel.suite), headers, "sparse", others)
    try:
        said = shop.make("sparse", what="sparse on")
        assert said.count("CHECK") >= len(others) + 1, "sparse did not run"
        assert "warning:" not in said, said
    finally:
        shop.clear()
