"""The controller: builds, stages and rolls out releases in parallel lanes, and serves the hub."""

__version__ = "0.1.0"

__all__ = ["__version__"]
