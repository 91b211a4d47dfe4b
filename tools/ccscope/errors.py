"""The one kind of error that is meant for the person at the keyboard."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CcscopeError(Exception):
    """What is wrong, with which file or thing, and what to do about it."""
