"""The host program: verifies, realises and installs a release offline, and restores by itself."""

__version__ = "0.1.0"

__all__ = ["__version__"]
