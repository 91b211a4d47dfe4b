"""airlab: TCP experiments on real Linux kernels in virtual time."""

__version__ = "0.1.0"
