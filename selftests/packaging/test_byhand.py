"""Without packages: `make install` and `make dkms` in a guest, and both undone.

`make check-packaging` runs this.
"""

from __future__ import annotations

import pytest
from builddebs import source
from machine import files_on
from test_package import MACHINE, OLD, boot, told

pytestmark = pytest.mark.packaging


def test_make_install_and_make_dkms_leave_nothing_behind() -> None:
    with MACHINE.disk() as disk:
        boot("prepare", disk)
        before = told(files_on(disk))
        did = boot("byhand", disk, {"source.tar": source()})
        after = told(files_on(disk))
    release = MACHINE.release()
    assert did.did("install_file") == f"/lib/modules/{release}/updates/airtcp/tcp_j.ko"
    did.did("install_load")
    assert did.did("install_tool") == f"airtcp {OLD}"
    did.failed("uninstalled")
    for name in ("dkms_status", "dkms_again"):
        assert f"airtcp/{OLD}, {release}, x86_64: installed" in did.did(name)
    did.did("dkms_load")
    did.failed("dkms_removed")
    assert len(before) > 10_000
    assert sorted(set(before.items()) ^ set(after.items())) == []
