"""The guest's programs as built for the host, and how tests call them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tools:
    """The built programs and a folder for one test's files."""

    build: Path
    work: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, name: str, *args: object) -> subprocess.Popen[str]:
        proc = subprocess.Popen(
            [str(self.build / name), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
        )
        self.running.append(proc)
        return proc

    def run(self, name: str, *args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.build / name), *map(str, args)],
            capture_output=True,
            text=True,
            input=stdin,
            timeout=30,
            cwd=self.work,
            check=False,
        )

    def json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.work / name).read_text())
        return found
