"""The receive window that holds cwnd just below its collapse, and how to set it.

**The objective.**  The smallest window whose goodput is within a tolerance (1 %) of the best that
any window gave, and under which cwnd does not collapse: in the steady state (after the first
quarter) no loss event, and a coefficient of variation of cwnd of 5 % at most.

Why the smallest: from the window that just fills the path (the *knee*) up to the one at which the
queue overflows (the *collapse*) goodput is the same, and each byte more only waits in the queue.
The paper took the other end, just below the collapse; both ends are given.

:mod:`path` reads a path out of a recording, :mod:`search` looks for the window with few runs,
:mod:`lab` makes those runs, :mod:`settings` says how to set it and undo it.
"""
