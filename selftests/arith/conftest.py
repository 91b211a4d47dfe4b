# SPDX-License-Identifier: GPL-2.0
"""Builds the user-space harnesses around the modules' arithmetic once per test session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from arithharness import Harness

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "modules" / "include"
FOLDERS = ("tcp_cherry",)
"""Modules whose arithmetic is in a header of their own folder."""

CFLAGS = [
    "-std=gnu11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]


def _built(name: str, folder: Path) -> Iterator[Harness]:
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        pytest.fail(f"these tests need a C compiler; '{compiler}' was not found (CC names another)")
    program = folder / name
    places = [f"-I{INCLUDE}", *(f"-I{INCLUDE.parent / folder}" for folder in FOLDERS)]
    command = [compiler, *CFLAGS, *places, str(HERE / f"{name}.c"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.fail(f"{' '.join(command)}\n{built.stderr}")
    running = Harness(program)
    yield running
    assert running.close() == 0


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """TCP-J's arithmetic, compiled with warnings as errors and with sanitizers."""
    yield from _built("abe_harness", tmp_path_factory.mktemp("arith"))


@pytest.fixture(scope="session")
def imtcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The arithmetic of ImTCP and Symbiosis, built the same way."""
    yield from _built("imtcp_harness", tmp_path_factory.mktemp("arith"))


@pytest.fixture(scope="session")
def cherry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The harness around cherry_math.h, built the same way."""
    yield from _built("cherry_harness", tmp_path_factory.mktemp("arith"))
