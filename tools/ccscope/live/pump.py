"""Takes frames from a feed into a model, in a thread of its own, for the views."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from ccscope.errors import CcscopeError
from ccscope.live.feeds import Feed
from ccscope.live.model import Model

_KEEP_S = 300.0
_SPARE = 1000


class Pump:
    """Runs while its context is open; hold ``lock`` to look at ``model``.

    Args:
        feed: entered already.
        model: takes the frames.
        every_s: time between frames.
        failed: called in the pump's thread when the feed has failed; nothing follows then.

    Attributes:
        error: why it failed, or None.
    """

    def __init__(
        self,
        feed: Feed,
        model: Model,
        *,
        every_s: float = 0.1,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.feed, self.model = feed, model
        self.lock = threading.Lock()
        self.error: CcscopeError | None = None
        self._every_s, self._failed = every_s, failed
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)

    def __enter__(self) -> Pump:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self._step()
            except CcscopeError as error:
                self.error = error
                if not self._done.is_set():
                    self._failed()
                return
            self._done.wait(self._every_s)

    def _step(self) -> None:
        frame = self.feed.take()
        with self.lock:
            self.model.add(frame)
            if len(frame.flows) > 4 * len(self.model.flows) + _SPARE:
                recent = frame.now_s - _KEEP_S
                flows = self.model.flows.values()
                self.feed.forget({f.label for f in flows if f.seen_s > recent})
