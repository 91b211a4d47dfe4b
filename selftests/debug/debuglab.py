"""The lab on a debug kernel, for tests that name their kernel themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from airlab import kernels
from airlab.image import ensure_image
from airlab.model import AirlabError
from guestlab import Lab, engine_for


class Labs:
    """Labs by the name of the debug kernel; ``slot`` as for :class:`guestlab.Lab`."""

    def __init__(self, shared: Path, slot: int) -> None:
        self._shared = shared
        self._slot = slot
        self._made: dict[str, Lab] = {}

    def on(self, name: str) -> Lab:
        """The lab on that kernel; skips the test by name if the kernel was not built."""
        if name not in self._made:
            try:
                kernel = kernels.find(name)
            except AirlabError:
                pytest.skip(f"kernel {name} is not built: airlab kernels --fetch {name}")
            folder = self._shared / name
            folder.mkdir(exist_ok=True)
            self._made[name] = Lab(engine_for(ensure_image(kernel)), folder, self._slot)
        return self._made[name]
