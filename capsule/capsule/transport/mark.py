"""What a host prints before the program starts: login shells and their start-up files are noisy."""

from collections.abc import Callable
from typing import Final

from capsule_manifest.errors import Refused

__all__ = ["read_to_mark"]

_NOISE_BYTES_MAX: Final = 64 * 1024


def read_to_mark(
    read: Callable[[], bytes], noise: bytearray, mark: bytes, *, place: str
) -> bytes | None:
    """Read up to the end of `mark`; return what came after it, None if the output ended without.

    What came before the mark is left in `noise`, also when a deadline of `read` interrupts.

    Raises:
        Refused: `wire-malformed` for more than 64 KiB before the mark.
    """
    while (at := noise.find(mark)) < 0:
        data = read()
        if not data:
            return None
        noise += data
        if len(noise) > _NOISE_BYTES_MAX and mark not in noise:
            raise Refused(
                "wire-malformed",
                "a host sends too much before the program starts",
                expected=f"at most {_NOISE_BYTES_MAX} bytes",
                got=bytes(noise[:80]).decode("utf-8", errors="backslashreplace"),
                where=place,
            )
    rest = bytes(noise[at + len(mark) :])
    del noise[at:]
    return rest
