"""What SSH needs to know, from one entry of the route: a client configuration and a command line.

Pure: text out of values. Nothing of a person's or a machine's own SSH configuration takes part, so
that two controllers reach a node in exactly the same way. What belongs to a controller and not to
the route is its private key: `Access`.

Source: ssh_config(5) and sshd(8) of OpenSSH 9.2.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from capsule.transport.base import Limits
from capsule.transport.local import HOST_ENVIRONMENT
from capsule_manifest.errors import Refused
from capsule_manifest.route import CA_MARK, Endpoint, Hop

__all__ = [
    "Access",
    "Timing",
    "alias",
    "check_hops",
    "client_config",
    "client_proxy",
    "fabric_reaches",
    "known_hosts",
    "remote_command",
]

_ALIVE_S: Final = 5
_ALIVE_COUNT: Final = 3
_KILL_S: Final = 5
_HOPS_MAX: Final = 4
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9]+)?")
_USER = re.compile(r"[a-z_][a-z0-9._-]{0,62}")
_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{4,16384}={0,2}( [^\x00-\x1f\x7f]*)?")
CIPHERS: Final = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)
_OPTIONS: Final = (
    "BatchMode yes",
    "StrictHostKeyChecking yes",
    "GlobalKnownHostsFile /dev/null",
    "UpdateHostKeys no",
    "VerifyHostKeyDNS no",
    "CheckHostIP no",
    "CanonicalizeHostname no",
    "IdentitiesOnly yes",
    "AddKeysToAgent no",
    "ForwardAgent no",
    "ForwardX11 no",
    "PermitLocalCommand no",
    "PreferredAuthentications publickey",
    "PubkeyAuthentication yes",
    "ControlMaster no",
    "ControlPath none",
    "RequestTTY no",
    "EscapeChar none",
    "Compression no",
    "ConnectionAttempts 1",
    "TCPKeepAlive yes",
    # Hardware does GCM fastest; the others are for hosts that lack it.
    f"Ciphers {','.join(CIPHERS)}",
    # Some networks drop what OpenSSH marks as interactive or as bulk.
    "IPQoS none",
    "LogLevel ERROR",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How this controller proves who it is: a private key file, or the agent when asked for.

    Without `identity` OpenSSH's own default files are tried.
    """

    identity: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Deadlines of the way to a program, in whole seconds.

    `connect_s` is for connection, banner and key exchange of one hop; `start_s` for what follows:
    authentication, the shell's start-up files, sudo.
    """

    connect_s: int = 10
    start_s: int = 10

    def total_s(self, hops: int) -> int:
        """Return the deadline from the first packet to the start of the program."""
        return hops * self.connect_s + self.start_s


def check_hops(endpoint: Endpoint, place: str) -> tuple[Hop, ...]:
    """Return the hosts of the way, the target last, each value proved harmless in a configuration.

    Raises:
        Refused: `endpoint-invalid`.
    """
    target = Hop(
        address=endpoint.address or "",
        port=endpoint.port,
        user=endpoint.user or "root",
        host_key=endpoint.host_key or "",
        name=endpoint.name,
    )
    hops = (*endpoint.jump, target)
    if len(hops) > _HOPS_MAX + 1:
        raise _invalid("jump", f"at most {_HOPS_MAX} hosts", len(endpoint.jump), place)
    for hop in hops:
        if not _ADDRESS.fullmatch(hop.address):
            raise _invalid("address", "a host name or IP address", hop.address, place)
        if hop.name is not None and not _ADDRESS.fullmatch(hop.name):
            raise _invalid("name", "a host name", hop.name, place)
        if not _USER.fullmatch(hop.user):
            raise _invalid("user", "a user name", hop.user, place)
        if not _KEY.fullmatch(hop.host_key.removeprefix(CA_MARK)):
            raise _invalid("host_key", "a type and a key as in a .pub file", hop.host_key, place)
    return hops


def fabric_reaches(endpoint: Endpoint, access: Access) -> bool:
    """Say whether `FabricTransport` can check and prove all that the way needs."""
    pins = [endpoint.host_key or "", *(hop.host_key for hop in endpoint.jump)]
    pinned = not any(pin.startswith(CA_MARK) for pin in pins)
    return pinned and access.identity is not None and access.agent is None


def alias(index: int) -> str:
    """Return the name of hop `index` in the generated configuration."""
    return f"capsule-hop-{index}"


def known_hosts(hop: Hop) -> str:
    """Return the content of the known-hosts file that pins this hop and nothing else."""
    mark = CA_MARK if hop.host_key.startswith(CA_MARK) else ""
    return f"{mark}{_principal(hop)} {hop.host_key.removeprefix(CA_MARK)}\n"


def client_config(hops: Sequence[Hop], access: Access, *, timing: Timing, folder: str) -> str:
    """Return an OpenSSH client configuration for the whole way.

    `folder` holds this text as `config` and the pins as `known-<index>`. Each hop is reached by a
    client of its own through the one before, so that each is checked against its own pin.
    """
    blocks: list[str] = []
    for index, hop in enumerate(hops):
        lines = [
            f"Host {alias(index)}",
            f"HostName {hop.address.replace('%', '%%')}",
            # One spelling for the pin whatever the port is, and the principal of a certificate.
            f"HostKeyAlias {_principal(hop)}",
            f"Port {hop.port}",
            f"User {hop.user}",
            f"UserKnownHostsFile {_path(f'{folder}/known-{index}')}",
            f"ConnectTimeout {timing.connect_s}",
            f"ServerAliveInterval {_ALIVE_S}",
            f"ServerAliveCountMax {_ALIVE_COUNT}",
            f"IdentityAgent {_path(access.agent) if access.agent else 'none'}",
            *_OPTIONS,
        ]
        if access.identity is not None:
            lines.append(f"IdentityFile {_path(access.identity)}")
        if access.agent is not None:
            # The agent's keys count only when they may be offered without a file that names them.
            lines = ["IdentitiesOnly no" if x == "IdentitiesOnly yes" else x for x in lines]
        if index:
            lines.append(f"ProxyCommand {client_proxy(index, folder=folder)}")
        blocks.append("\n  ".join(lines) + "\n")
    return "\n".join(blocks)


def client_proxy(index: int, *, folder: str) -> str:
    """Return the command that connects its pipes to hop `index` through the hop before it."""
    config = shlex.quote(f"{folder}/config").replace("%", "%%")
    return f"ssh -F {config} -W [%h]:%p {alias(index - 1)}"


def remote_command(argv: Sequence[str], *, user: str, limits: Limits, mark: str) -> str:
    """Return the one string that sshd hands to the login shell: start `argv`, after `mark`.

    `mark` and a newline are printed when nothing but the program remains to be started, so that
    what start-up files print comes before it. The program gets a fixed environment and ends at the
    latest a little after `limits.total_s`: the host does not notice when a controller goes away.
    """
    environment = [f"{name}={value}" for name, value in HOST_ENVIRONMENT.items()]
    seconds = ceil(limits.total_s) + _KILL_S
    # The mark comes in two halves, so that an echo of this command is not taken for it.
    # The shell stays, so that a program that a signal ended has an exit code (128 and more): SSH
    # clients can't tell the signal itself from a lost connection.
    start = 'cd / && umask 022 && printf "%s%s\\n" "$1" "$2" && shift 2 || exit 126'
    script = start + '; "$@"; exit $?'
    bounded = [
        "/usr/bin/env",
        "-i",
        *environment,
        "timeout",
        "-k",
        str(_KILL_S),
        str(seconds),
        *argv,
    ]
    half = len(mark) // 2
    words = ["/bin/sh", "-c", script, "capsule", mark[:half], mark[half:], *bounded]
    # Without a terminal nobody can be asked for a password: refused at once.
    sudo = [] if user == "root" else ["sudo", "-n", "--"]
    return "exec " + shlex.join([*sudo, *words])


def _principal(hop: Hop) -> str:
    """Return what a host is called in pins: certificates are made for names, not for addresses."""
    return hop.name or hop.address


def _path(path: str) -> str:
    """Return a path as a value of the configuration, where `%` and quotes mean something."""
    if re.search(r'[\x00-\x1f\x7f"\\]', path):
        raise _invalid("path", "a path without quotes, backslashes and controls", path, "ssh")
    doubled = path.replace("%", "%%")
    return f'"{doubled}"' if " " in doubled else doubled


def _invalid(field: str, expected: str, got: object, place: str) -> Refused:
    return Refused(
        "endpoint-invalid",
        f"the way to a node has a wrong {field}",
        expected=expected,
        got=repr(got)[:80],
        where=place,
    )
