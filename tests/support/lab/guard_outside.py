"""What a guarded step would reach if it could: servers of one host, which remember who came.

Each speaks to whoever comes as far as a program needs to call it a success, and keeps every byte.
Whether a token is among them is the proof, seen from outside.
"""

import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["PORT", "RAW_PROTOCOL", "Outside"]

PORT = 8099
RAW_PROTOCOL = 253  # RFC 3692: for experiments
NAME_SERVER = "127.0.0.2"
DOCKER = "/run/docker.sock"
RESOLVER = "/run/systemd/resolve/io.systemd.Resolve"
NAME_SERVICE = "/run/nscd/socket"

_ANSWER = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Outside:
    """Servers on this host; `address` is its own on the network."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._heard = bytearray()
        for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")):
            self._serve_streams(_listening(family, (host, PORT)))
        self._serve_datagrams(_bound(socket.SOCK_DGRAM, ("0.0.0.0", PORT)))
        self._serve_datagrams(_bound(socket.SOCK_RAW, ("0.0.0.0", 0), RAW_PROTOCOL))
        self._serve_names(_bound(socket.SOCK_DGRAM, (NAME_SERVER, 53)))
        Path("/etc/resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
        for path in (DOCKER, RESOLVER):
            self.serve_path(path)

    def serve_path(self, path: str) -> None:
        """Listen at a path of the file system from now on."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        self._serve_streams(_listening(socket.AF_UNIX, path))

    def has_heard(self, token: str) -> bool:
        """Say whether anybody has brought the token."""
        return token.encode() in self._heard

    def _serve_streams(self, server: socket.socket) -> None:
        def attend() -> None:
            while True:
                link, _ = server.accept()
                with link, suppress(OSError):
                    link.settimeout(1)
                    self._heard.extend(link.recv(4096))
                    link.sendall(_ANSWER)

        threading.Thread(target=attend, daemon=True).start()

    def _serve_datagrams(self, server: socket.socket) -> None:
        def attend() -> None:
            while True:
                self._heard.extend(server.recv(4096))

        threading.Thread(target=attend, daemon=True).start()

    def _serve_names(self, server: socket.socket) -> None:
        """Answer every question for an IPv4 address with this host's own."""
        address = socket.inet_aton(self.address)

        def attend() -> None:
            while True:
                query, asker = server.recvfrom(512)
                self._heard.extend(_dotted(query[12:]))
                end = query.index(b"\0", 12) + 5
                (kind,) = struct.unpack_from("!H", query, end - 4)
                answers = 1 if kind == 1 else 0
                header = query[:2] + struct.pack("!5H", 0x8580, 1, answers, 0, 0)
                record = struct.pack("!3HIH", 0xC00C, 1, 1, 60, 4) + address
                server.sendto(header + query[12:end] + record * answers, asker)

        threading.Thread(target=attend, daemon=True).start()


def _dotted(name: bytes) -> bytes:
    words, at = [], 0
    while at < len(name) and name[at]:
        words.append(name[at + 1 : at + 1 + name[at]])
        at += 1 + name[at]
    return b".".join(words) + b"\n"


def _listening(family: int, address: tuple[str, int] | str) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(address)
    if isinstance(address, str):
        Path(address).chmod(0o666)
    server.listen(64)
    return server


def _bound(kind: int, address: tuple[str, int], protocol: int = 0) -> socket.socket:
    server = socket.socket(socket.AF_INET, kind, protocol)
    server.bind(address)
    return server
