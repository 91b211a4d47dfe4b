"""Completion of words in a shell, by argcomplete.

``eval "$(register-python-argcomplete ccscope airlab)"`` in a shell's start file turns it on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable

Completer = Callable[..., list[str]]


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end, if it is the shell that asks.

    Needs argcomplete, which is loaded only then.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def completes(action: argparse.Action, completer: Completer) -> None:
    """Let ``completer`` say which words an argument can be."""
    # argcomplete looks for an attribute that argparse does not know of.
    vars(action)["completer"] = completer


def one_of(names: Callable[[], Iterable[str]], *suffixes: str) -> Completer:
    """Words of a list; with ``suffixes`` also files that end so, and folders."""

    def complete(prefix: str, **_: object) -> list[str]:
        found = [name for name in names() if name.startswith(prefix)]
        if suffixes:
            from argcomplete.completers import FilesCompleter

            found += FilesCompleter(suffixes)(prefix)
        return found

    return complete


def some_of(names: Callable[[], Iterable[str]]) -> Completer:
    """Words of a list, several with commas between them."""

    def complete(prefix: str, **_: object) -> list[str]:
        given, comma, last = prefix.rpartition(",")
        used = given.split(",")
        return [
            f"{given}{comma}{name}"
            for name in names()
            if name.startswith(last) and name not in used
        ]

    return complete
