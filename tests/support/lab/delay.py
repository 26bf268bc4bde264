"""A slow, far or lossy path to a lab host: a proxy on loopback (`sch_netem` is not everywhere)."""

import asyncio
import contextlib
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["DelayProxy"]

_CHUNK_BYTES = 64 * 1024
_STOP_S = 5


class DelayProxy:
    """Carry TCP from 127.0.0.1:`port` to a host, each way `delay_s` later.

    `bytes_per_s` bounds each direction of each connection. `hang` makes every open and new
    connection go silent without closing it, as a path does that lost its packets.
    """

    def __init__(
        self, target: tuple[str, int], *, delay_s: float = 0, bytes_per_s: float | None = None
    ) -> None:
        self.port = 0
        self.accepted = 0
        self._target = target
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._hanging = threading.Event()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._ready.wait(_STOP_S), "the proxy did not listen"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut every connection and stop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def hang(self) -> None:
        """Carry nothing from now on, and close nothing."""
        self._hanging.set()

    def recover(self) -> None:
        """Carry again, also what came meanwhile."""
        self._hanging.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", 0)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # transports close one step later
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except asyncio.CancelledError:
            # The proxy stops; who started this task would print that as a failure.
            pass
        finally:
            writer.close()
            far_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        pump = asyncio.ensure_future(self._late(queue, writer))
        free_at = 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if self._bytes_per_s:
                    now = time.monotonic()
                    free_at = max(free_at, now) + len(data) / self._bytes_per_s
                    await asyncio.sleep(free_at - now)
                await queue.put((time.monotonic() + self._delay_s, data))
        await queue.put((time.monotonic() + self._delay_s, b""))
        await pump

    async def _late(
        self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                while self._hanging.is_set():
                    await asyncio.sleep(0.01)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
