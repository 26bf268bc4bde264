"""The controller's clock: the only module that reads it; everything else takes `now`."""

from datetime import UTC, datetime

__all__ = ["utc_now"]


def utc_now() -> datetime:
    """Return the time now, aware, in UTC."""
    return datetime.now(tz=UTC)
