"""ccscope: see what TCP does on a running Linux host, and why."""

__version__ = "0.1.0"
