"""Formats of capsule: bytes in, values out.

Nothing in this package reads a clock, a disk, a socket, the environment or a random source.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
