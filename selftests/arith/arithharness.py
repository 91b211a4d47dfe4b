# SPDX-License-Identifier: GPL-2.0
"""A running harness around the modules' arithmetic; conftest.py builds and starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


class Harness:
    """A running harness: cases go in, results come out, one line each."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, kind: str, *values: int) -> list[int]:
        """Run one case and return the numbers of its answer."""
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._process.stdin.write(" ".join([kind, *map(str, values)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            pytest.fail(f"harness died on {kind} {values}:\n{self._process.stderr.read()}")
        return [int(word) for word in answer.split()]

    def one(self, kind: str, *values: int) -> int:
        """Run one case that answers with a single number."""
        (value,) = self.ask(kind, *values)
        return value

    def close(self) -> int:
        """End the harness and return its exit code (leaks show up here)."""
        self._process.communicate(timeout=30)
        return self._process.returncode
