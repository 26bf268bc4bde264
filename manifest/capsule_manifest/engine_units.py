"""What a unit's command must say when it starts a container, so that nothing is pulled or outlives.

An engine pulls what it lacks unless it is told not to, and starts containers beside the unit that
asked: a stop of the unit then leaves the old release running. Builder and host refuse both.

Words are read as the engine reads them, as far as that is known: an option that is not known may
take the next word or not, so nothing behind it counts.

Source: podman(1), podman-run(1); env(1); systemd.service(5), systemd.kill(5).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["IMAGE_ID", "command_problems", "engine_of", "is_image_id"]

IMAGE_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
"""How engines name an image for ever: by the digest of its configuration."""

_ENGINE: Final = re.compile(r"(?:.*/)?(podman|docker|nerdctl|ctr)")
_ENV: Final = re.compile(r"(?:.*/)?env")
_ENV_VALUED: Final = frozenset({"-u", "--unset", "-C", "--chdir"})
_PREFIXES: Final = "@-:+!|"  # before a program, systemd reads these as its own
_STARTS: Final = frozenset({"run", "create"})
_HARMLESS: Final = frozenset({
    "exec", "inspect", "kill", "logs", "ps", "rm", "start", "stop", "system prune", "wait",
})  # fmt: skip
_GROUPS: Final = frozenset({"container", "image", "images", "kube", "system"})
_CGROUPS: Final = frozenset({"split", "disabled"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

# Of the engine itself, before its subcommand.
_GLOBAL_FLAGS: Final = frozenset({
    "--debug", "--noout", "--remote", "--syslog", "--tls", "--trace", "--transient-store",
    "-D", "-r",
})  # fmt: skip
_GLOBAL_VALUED: Final = frozenset({
    "--address", "--cgroup-manager", "--config", "--conmon", "--connection", "--context",
    "--events-backend", "--hooks-dir", "--host", "--identity", "--imagestore", "--log-level",
    "--module", "--namespace", "--network-cmd-path", "--network-config-dir", "--out", "--root",
    "--runroot", "--runtime", "--runtime-flag", "--ssh", "--storage-driver", "--storage-opt",
    "--tmpdir", "--url", "--volumepath", "-H", "-a", "-c", "-l", "-n",
})  # fmt: skip
# Of run and create.
_FLAGS: Final = frozenset({
    "--detach", "--env-host", "--http-proxy", "--init", "--interactive", "--no-healthcheck",
    "--no-hosts", "--oom-kill-disable", "--privileged", "--publish-all", "--quiet", "--read-only",
    "--read-only-tmpfs", "--replace", "--rm", "--rmi", "--sig-proxy", "--tls-verify", "--tty",
    "--unsetenv-all", "-P", "-d", "-i", "-q", "-t",
})  # fmt: skip
_VALUED: Final = frozenset({
    "--add-host", "--annotation", "--cap-add", "--cap-drop", "--cgroups", "--cidfile",
    "--conmon-pidfile", "--cpus", "--device", "--dns", "--entrypoint", "--env", "--env-file",
    "--gidmap", "--group-add", "--health-cmd", "--health-interval", "--health-retries",
    "--health-timeout", "--hostname", "--ip", "--ipc", "--label", "--log-driver", "--log-opt",
    "--memory", "--mount", "--name", "--net", "--network", "--network-alias", "--pid",
    "--pidfile", "--pids-limit", "--publish", "--pull", "--restart", "--sdnotify", "--secret",
    "--security-opt", "--shm-size", "--stop-signal", "--stop-timeout", "--sysctl", "--tmpfs",
    "--tz", "--uidmap", "--ulimit", "--umask", "--user", "--userns", "--uts", "--volume",
    "--workdir", "-e", "-h", "-l", "-m", "-p", "-u", "-v", "-w",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Options in front of a word, each with its value, "" without one.

    `rest` begins with the first word that is none, or with an option that is not known.
    """

    found: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]

    def last(self, name: str) -> str:
        return next((value for option, value in reversed(self.found) if option == name), "")


def is_image_id(text: str) -> bool:
    """Say whether a text is the id of an image."""
    return IMAGE_ID.fullmatch(text) is not None


def engine_of(argv: Sequence[str]) -> str | None:
    """Return the container engine that a command line starts, None when it starts none."""
    words = _behind_env(argv)
    match = _ENGINE.fullmatch(words[0]) if words else None
    return match[1] if match else None


def command_problems(argv: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a command of a unit, if it starts a container.

    Quotes are the caller's business: `argv` are words as the program will get them. A lone `;`
    begins another command.
    """
    for command in _commands(argv):
        yield from _problems(command)


def _problems(command: tuple[str, ...]) -> Iterator[str]:
    engine = engine_of(command)
    if engine is None:
        return
    before = _options(_behind_env(command)[1:], _GLOBAL_FLAGS, _GLOBAL_VALUED)
    if not before.rest:
        return
    word, *others = before.rest
    if word.startswith("-"):
        yield f"{word} is not known before {engine}'s subcommand; say --option=value"
        return
    if word in _GROUPS and others:
        word = others[0] if word == "container" else f"{word} {others[0]}"
        others = others[1:]
    if word in _STARTS:
        yield from _start_problems(engine, tuple(others))
    elif word in {"pull", "image pull", "images pull"}:
        yield "an image is pulled; the release brings it"
    elif word not in _HARMLESS:
        allowed = ", ".join(sorted(_STARTS | _HARMLESS))
        yield f"{engine} {word} may fetch or start what is not the release's; one of {allowed}"


def _start_problems(engine: str, words: tuple[str, ...]) -> Iterator[str]:
    if engine != "podman":
        yield f"{engine} runs containers outside of the unit; run them with podman"
        return
    options = _options(words, _FLAGS, _VALUED)
    is_known = not options.rest[:1] or not options.rest[0].startswith("-")
    # Behind an option that is not known only what makes it worse counts.
    behind = () if is_known else _loose(options.rest)
    pulls = {options.last("--pull"), *(value for name, value in behind if name == "--pull")}
    if pulls != {"never"}:
        yield "an image may be pulled; say --pull=never before the image and rarer options"
    groups = {options.last("--cgroups"), *(value for name, value in behind if name == "--cgroups")}
    if not groups <= _CGROUPS:
        yield (
            "a container may outlive its unit; say --cgroups=split or --cgroups=disabled before "
            "the image and rarer options"
        )
    detached = [value for name, value in (*options.found, *behind) if name in {"-d", "--detach"}]
    if detached and detached[-1] not in _FALSE:
        yield "a container is detached, so its unit has no process to be proved"


def _commands(argv: Sequence[str]) -> Iterator[tuple[str, ...]]:
    command: list[str] = []
    for word in (*argv, ";"):
        if word != ";":
            command.append(word)
            continue
        yield tuple(command)
        command = []


def _behind_env(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command without the `env` in front of it, and without systemd's own marks."""
    words = [argv[0].lstrip(_PREFIXES), *argv[1:]] if argv else []
    while words and _ENV.fullmatch(words[0]):
        words = words[1:]
        while words and (words[0].startswith("-") or "=" in words[0]):
            option = words.pop(0)
            if option in _ENV_VALUED:
                words = words[1:]
            elif option in {"-S", "--split-string"} and words:
                words = [*words[0].split(), *words[1:]]
            elif option.startswith(("-S", "--split-string=")):
                text = option.removeprefix("--split-string=").removeprefix("-S")
                words = [*text.split(), *words]
    return tuple(words)


def _options(words: Sequence[str], flags: frozenset[str], valued: frozenset[str]) -> _Options:
    found: list[tuple[str, str]] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] not in {"-", "--"}:
        name, is_joined, value = left[0].partition("=")
        if name.startswith("--"):
            read = [(name, value)]
            takes_next = not is_joined and name in valued
            is_known = bool(is_joined) or takes_next or name in flags
        else:
            read, takes_next, is_known = _cluster(left[0], flags, valued)
        if not is_known or (takes_next and len(left) < 2):
            break
        if takes_next:
            read[-1] = (read[-1][0], left[1])
        found += read
        left = left[2 if takes_next else 1 :]
    return _Options(found=tuple(found), rest=tuple(left[1:] if left[:1] == ["--"] else left))


def _cluster(
    word: str, flags: frozenset[str], valued: frozenset[str]
) -> tuple[list[tuple[str, str]], bool, bool]:
    """Read short options of one word: what they are, whether the next word is a value, if known."""
    found: list[tuple[str, str]] = []
    for at, letter in enumerate(word[1:], 2):
        option = f"-{letter}"
        if option in valued:
            return [*found, (option, word[at:])], not word[at:], True
        if option not in flags:
            # Such as -d=false: a flag's own value.
            is_value = letter == "=" and bool(found)
            return [*found[:-1], (found[-1][0], word[at:])] if is_value else found, False, is_value
        found.append((option, ""))
    return found, False, True


def _loose(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return whatever could be an option, wherever it stands."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return tuple(
        (name, value if joined else "" if name in _FLAGS else following)
        for word, following in pairs
        for name, joined, value in [word.partition("=")]
        if name.startswith("-")
    )
