"""Stage releases of any number of files and count the waits for a host on the way."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from capsule.first_contact import RuntimeSource
from capsule.home import ProductHome
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.stage import NodeStaged, Stager
from capsule.transport.base import Channel, Limits, Transport
from support import documents
from support.capsules import real_runtime, write_capsule
from support.lab.controller import Silence

__all__ = ["SIZES", "turns_of"]

SIZES = (100, 1_000, 18_000)
FLEET = """\
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
guard_min = "L0"
[nodes.n1]
local = "n1"
role = "web"
platform = "bookworm"
lane = "a"
"""
UNIT = "[Service]\nExecStart=/bin/sleep 1000\n"


class Counted:
    """A transport that counts channels, and on them each change from writing to reading."""

    def __init__(self, inner: Transport, turns: list[str], root: Path) -> None:
        self._inner, self._turns = inner, turns
        self.place, self.root = inner.place, str(root)

    def open(self, argv: Sequence[str], *, limits: Limits) -> "CountedChannel":
        self._turns.append(f"open {argv[1] if len(argv) < 5 else 'first contact'}")
        return CountedChannel(self._inner.open(argv, limits=limits), self._turns)


class CountedChannel:
    """A channel of `Counted`: a wait for an answer counts if something was written before it."""

    def __init__(self, inner: Channel, turns: list[str]) -> None:
        self._inner, self._turns, self._wrote = inner, turns, True
        self.limit, self.end_input = inner.limit, inner.end_input
        self.take, self.wait = inner.take, inner.wait

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def write(self, data: bytes | memoryview) -> bool:
        self._wrote = True
        return self._inner.write(data)

    def read(self) -> bytes:
        if self._wrote:
            self._turns.append("wait")
            self._wrote = False
        return self._inner.read()


def turns_of(tmp_path: Path, files: int, way: Callable[[Path], Transport]) -> list[str]:
    """Stage a release with so many files on a host that was met before; return what happened.

    The host is the folder `n1` of `tmp_path`, and `way` returns the transport to it.
    """
    policy = documents.make_policy()
    home = ProductHome(home=tmp_path / "state", product="acme/hello")
    (tmp_path / "n1").mkdir()
    fleet = read_fleet(FLEET.encode(), folder=tmp_path, where="fleet.toml")
    turns: list[str] = []
    for counter, count in ((1, 1), (2, files)):
        content = {f"d{index % 97}/f{index}": b"%d\n" % index for index in range(count)}
        mini = write_capsule(
            tmp_path / f"{counter}.capsule",
            counter=counter,
            components={"app": content},
            runtime=real_runtime(),
            unit=UNIT,
        )
        payload = open_payload(mini.folder, policy)
        turns.clear()
        stager = Stager(
            home=home,
            fleet=fleet,
            payload=payload,
            runtimes=RuntimeSource(payload),
            policy=policy,
            route_signer=documents.ROUTE_KEY,
            controller=documents.CONTROLLER_KEY,
            connect=lambda *_: Counted(way(tmp_path / "n1"), turns, tmp_path / "n1"),
            watch=Silence(),
        )
        staged = stager.run(("n1",))[1]["n1"]
        assert isinstance(staged, NodeStaged), staged
    return turns
