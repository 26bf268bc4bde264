"""Streams to hosts that are opened while the rest of a command is still being read.

Connecting takes as long as importing what a staging needs and reading the capsule, and neither
needs the other. So the ways to the hosts are taken from the inventory at first sight, unchecked;
what is opened is used only if the checked inventory says the very same, and is closed otherwise.
Nothing is done on a host before: whoever is connected to says who it is, and waits.
"""

import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from capsule.transport.base import RECEIVE, Channel, Limits, Transport, host_program
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError
from capsule_manifest.route import CA_MARK, LANE_NODES_MAX, Endpoint, Hop

__all__ = ["EARLY_MAX", "EarlyStreams", "first_sight", "streams_for"]

EARLY_MAX: Final = LANE_NODES_MAX
"""As many as are worked on at a time; one more would wait with an idle connection."""
_SIZE_BYTES_MAX: Final = 1024 * 1024

_SWITCH_S: Final = 0.0002
"""How long a thread that opens a stream waits for one that imports. Each of its steps would wait
5 ms otherwise, and it takes a dozen to start a client."""

Connect = Callable[[Endpoint, str], Transport]


class EarlyStreams:
    """Open one stream a node in the background; leaving the context closes what nobody claimed."""

    def __init__(
        self, connect: Connect, argv: Callable[[Transport], Sequence[str]], *, limits: Limits
    ) -> None:
        self._connect = connect
        self._argv = argv
        self._limits = limits
        self._openings: dict[str, _Opening] = {}
        self._switch_s = sys.getswitchinterval()

    def begin(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Begin to open a stream to each of the first nodes."""
        sys.setswitchinterval(_SWITCH_S)
        for node, endpoint in tuple(endpoints.items())[:EARLY_MAX]:
            try:
                transport = self._connect(endpoint, node)
            except CapsuleError:
                # What is wrong with it is said when the inventory is checked.
                continue
            self._openings[node] = _Opening(
                transport, endpoint, self._argv(transport), limits=self._limits
            )

    def connect(self, endpoint: Endpoint, node: str) -> Transport:
        """Return the transport to a frozen endpoint, with the stream that was begun if it is one.

        Raises:
            Refused: `endpoint-invalid`.
        """
        transport = self._connect(endpoint, node)
        # All has been imported by now.
        sys.setswitchinterval(self._switch_s)
        opening = self._openings.get(node)
        if opening is None or opening.endpoint != endpoint:
            return transport
        return _EarlyTransport(transport, opening)

    def __enter__(self) -> Self:
        """Return the streams themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what nobody claimed; what is still being opened closes itself."""
        sys.setswitchinterval(self._switch_s)
        for opening in self._openings.values():
            opening.abandon()


def streams_for(arguments: Sequence[str]) -> EarlyStreams:
    """Begin the streams that `capsule stage` with these arguments will ask for.

    The arguments are read as far as they are plain; what else they say, the command finds out.
    """
    fleet, lane = "fleet.toml", None
    nodes: list[str] = []
    words = iter(arguments)
    for word in words:
        name, is_joined, value = word.partition("=")
        if name not in {"--fleet", "--lane", "--node"}:
            continue
        value = value if is_joined else next(words, "")
        if name == "--fleet":
            fleet = value
        elif name == "--lane":
            lane = value
        else:
            nodes.append(value)
    early = EarlyStreams(
        connect, lambda way: (host_program(way), "receive", "--hello"), limits=RECEIVE
    )
    if (lane is None) == bool(nodes) and "--help" not in arguments:
        early.begin(first_sight(Path(fleet), lane=lane, nodes=tuple(nodes)))
    return early


class _EarlyTransport:
    """A transport whose first stream was begun before; implements `Transport`."""

    def __init__(self, inner: Transport, opening: "_Opening") -> None:
        self._inner = inner
        self._opening = opening

    @property
    def root(self) -> str:
        return self._inner.root

    @property
    def place(self) -> str:
        return self._inner.place

    def open(self, argv: Sequence[str], *, limits: Limits) -> Channel:
        if self._opening.is_for(argv, limits):
            channel = self._opening.claim()
            if channel is not None:
                return channel
        return self._inner.open(argv, limits=limits)


class _State(Enum):
    WAITING = auto()
    CLAIMED = auto()
    ABANDONED = auto()


class _Opening:
    """One stream that a thread of its own opens; the thread ends when it is open or can't be."""

    def __init__(
        self, transport: Transport, endpoint: Endpoint, argv: Sequence[str], *, limits: Limits
    ) -> None:
        self.endpoint = endpoint
        self._transport = transport
        self._argv = tuple(argv)
        self._limits = limits
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._failure: CapsuleError | OSError | None = None
        self._state = _State.WAITING
        # A process that has failed must not wait for a handshake: the client ends with its pipes.
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._thread.start()

    def is_for(self, argv: Sequence[str], limits: Limits) -> bool:
        return (tuple(argv), limits) == (self._argv, self._limits)

    def claim(self) -> Channel | None:
        """Return the stream to the first who asks, None to all others.

        Raises: what opening it raised, because asking again would only double the wait.
        """
        with self._lock:
            if self._state is not _State.WAITING:
                return None
            self._state = _State.CLAIMED
        # Bounded, because every step of opening is.
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._channel is not None, "the thread has ended"
        # What was spent on other work must not count as the host's silence.
        self._channel.limit(self._limits)
        return self._channel

    def abandon(self) -> None:
        """Close the stream, now or as soon as it is open, unless somebody has claimed it."""
        with self._lock:
            if self._state is not _State.WAITING:
                return
            self._state = _State.ABANDONED
            channel = self._channel
        if channel is not None:
            channel.__exit__(None, None, None)

    def _open(self) -> None:
        try:
            channel = self._transport.open(self._argv, limits=self._limits)
        except (CapsuleError, OSError) as error:
            # Whoever claims the stream hears of it.
            self._failure = error
            return
        with self._lock:
            self._channel = channel
            is_late = self._state is _State.ABANDONED
        if is_late:
            channel.__exit__(None, None, None)


def first_sight(path: Path, *, lane: str | None, nodes: tuple[str, ...]) -> Mapping[str, Endpoint]:
    """Return where the selected nodes seem to be; nothing when the inventory is not plain.

    Nothing is checked, refused or reported here: `load_fleet` does that.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_SIZE_BYTES_MAX)
        document = tomllib.loads(raw.decode("utf-8"))
        tables = document["nodes"]
        jumps = document.get("jumps", {})
        return {
            name: _endpoint(tables[name], jumps)
            for name in nodes or sorted(tables)
            if (nodes or lane in {"all", tables[name].get("lane")}) and "address" in tables[name]
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _endpoint(table: Mapping[str, object], jumps: Mapping[str, Mapping[str, object]]) -> Endpoint:
    names = table.get("jump", ())
    if not isinstance(names, list | tuple):
        raise TypeError
    return Endpoint(
        kind="ssh",
        address=_text(table["address"]),
        port=_number(table.get("port", 22)),
        user=_text(table.get("user", "root")),
        host_key=_pin(table),
        jump=tuple(_hop(jumps[name]) for name in names),
    )


def _hop(table: Mapping[str, object]) -> Hop:
    return Hop(
        address=_text(table["address"]),
        port=_number(table.get("port", 22)),
        user=_text(table.get("user", "root")),
        host_key=_pin(table),
    )


def _pin(table: Mapping[str, object]) -> str:
    mark = CA_MARK if "host_ca" in table else ""
    pin = _text(table["host_ca"] if mark else table["host_key"])
    return mark + " ".join(pin.split(" ")[:2])


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value
