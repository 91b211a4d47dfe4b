"""What the words of ``airlab``'s command line can be, for a shell that completes them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from ccscope.completion import completes, one_of, some_of

from airlab import paths


def scenario(action: argparse.Action) -> None:
    """A scenario's name, or a file."""
    completes(action, one_of(lambda: _stems(paths.SCENARIOS), "toml"))


def figure_or_result(action: argparse.Action) -> None:
    """A figure's name, or a folder."""
    completes(action, one_of(lambda: _stems(paths.FIGURES), "toml"))


def algorithms(action: argparse.Action) -> None:
    """Labels of algorithms with commas between them."""
    completes(action, some_of(_labels))


def kernel(action: argparse.Action) -> None:
    """A lab kernel that is here."""
    completes(action, one_of(_releases))


def track(action: argparse.Action) -> None:
    """A lab kernel that can be had."""
    completes(action, one_of(_tracks))


def _stems(folder: Path) -> Iterable[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def _labels() -> Iterable[str]:
    from airlab.algorithms import BUILTIN

    return sorted(BUILTIN)


def _releases() -> Iterable[str]:
    from airlab import kernels

    return [found.release for found in kernels.installed()]


def _tracks() -> Iterable[str]:
    from airlab import kernels

    return [*kernels.TRACKS, *kernels.DEBUG_NAMES]
