"""A mapping that never changes and of which a changed copy is cheap, whatever its size.

States are values: an event makes a new one and leaves the old. With a plain dictionary each event
would copy every node of the fleet, and an epoch of five thousand nodes would be mostly copying.
The values lie in blocks; a changed copy shares all blocks but one.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

__all__ = ["Roster"]

_BLOCK_BITS: Final = 6
_BLOCK: Final = 1 << _BLOCK_BITS
_IN_BLOCK: Final = _BLOCK - 1

Value = TypeVar("Value")


class Roster(Mapping[str, Value], Generic[Value]):
    """Values by name, in the order in which they were given. The set of names is fixed."""

    __slots__ = ("_blocks", "_places")

    def __init__(self, items: Mapping[str, Value]) -> None:
        values = tuple(items.values())
        self._places = {name: place for place, name in enumerate(items)}
        self._blocks = tuple(
            values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK)
        )

    def __getitem__(self, name: str) -> Value:
        place = self._places[name]
        return self._blocks[place >> _BLOCK_BITS][place & _IN_BLOCK]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def with_value(self, name: str, value: Value) -> "Roster[Value]":
        """Return a copy in which `name`, which must be known, has another value."""
        place = self._places[name]
        number, offset = place >> _BLOCK_BITS, place & _IN_BLOCK
        block = self._blocks[number]
        block = (*block[:offset], value, *block[offset + 1 :])
        copy: Roster[Value] = Roster.__new__(Roster)
        copy._places = self._places
        copy._blocks = (*self._blocks[:number], block, *self._blocks[number + 1 :])
        return copy
