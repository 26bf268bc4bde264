"""Hooks: a fleet's own dispatcher is told of holds, by a command or by HTTP.

Three questions, each idempotent, each with a time limit:

    hold NODE      give the node no more work
    drained NODE   how much work is left, and what is known of the node's clocks
    resume NODE    the epoch's hold is over

Both ways carry epoch, turn, fence and route. What `drained` answers is JSON with `busy`, and as far
as they are known `serving`, `heartbeat_age_ms` and `credential_ms`. A hook that fails is asked
again until the driver's limits; it never makes a hold that nobody confirmed count as one.

Source: design, section 11; `docs/reference/hooks.md`.
"""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from capsule.lane.ports import HoldReport, Unreachable
from capsule.rollout.worker import Worker
from capsule_manifest.canonical import DEFAULT_LIMITS, decode_foreign
from capsule_manifest.errors import Failed
from capsule_manifest.fields import Object

__all__ = ["CommandHook", "Hook", "HookDispatch", "HttpHook"]

_TIMEOUT_S: Final = 30.0
_ANSWER_BYTES_MAX: Final = 64 * 1024
_KEPT: Final = ("PATH", "HOME", "LC_ALL", "LANG")


class Hook(Protocol):
    """A way to ask the fleet's dispatcher."""

    def ask(self, verb: str, facts: Mapping[str, str]) -> bytes:
        """Ask one question about `facts["node"]` and return the answer, which may be empty.

        Raises:
            Failed: `hook-failed`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHook:
    """Run `program VERB NODE`; facts are in the environment as `CAPSULE_…`. Exit code 0 is yes."""

    program: str

    def ask(self, verb: str, facts: Mapping[str, str]) -> bytes:
        """Run the program. Source: `Hook.ask`."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {f"CAPSULE_{name.upper()}": value for name, value in facts.items()}
        try:
            done = subprocess.run(
                [self.program, verb, facts["node"]],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(verb, self.program, error) from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace")[-300:].strip()
            raise _failed(verb, self.program, f"exit code {done.returncode}: {said}")
        return done.stdout[:_ANSWER_BYTES_MAX]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHook:
    """POST the facts as JSON to `url/VERB`. Status 200 is yes."""

    url: str

    def ask(self, verb: str, facts: Mapping[str, str]) -> bytes:
        """Send the question. Source: `Hook.ask`."""
        url = f"{self.url.rstrip('/')}/{verb}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked by the command line
            url,
            data=json.dumps(facts).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        # No proxy of the environment: a dispatcher is a service of the fleet's own.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                body: bytes = answer.read(_ANSWER_BYTES_MAX)
                return body
        except (OSError, urllib.error.URLError) as error:
            raise _failed(verb, url, error) from error


class HookDispatch:
    """Implement `Dispatch` with a hook; each node has a thread of its own."""

    def __init__(
        self,
        hook: Hook,
        *,
        facts: Mapping[str, str],
        hear: Callable[[HoldReport | Unreachable], None],
        serving: Callable[[str], bool],
    ) -> None:
        self._hook = hook
        self._facts = facts
        self._hear = hear
        self._serving = serving
        self._workers: dict[str, Worker] = {}

    def hold(self, node: str, turn: int, *, fence: int) -> None:
        """Place the hold, and ask what still runs."""
        # Read here, in the driver's own thread.
        serving = self._serving(node)

        def work() -> None:
            facts = self._told(node, turn, fence)
            self._hook.ask("hold", facts)
            raw = self._hook.ask("drained", facts)
            self._hear(_report(raw, node, turn, serving=serving))

        self._worker(node).put(f"hold {turn}", work)

    def release(self, node: str, turn: int, *, fence: int) -> None:
        """Remove the hold, and report it once the dispatcher has confirmed."""

        def work() -> None:
            self._hook.ask("resume", self._told(node, turn, fence))
            self._hear(
                HoldReport(
                    node=node,
                    turn=turn,
                    held=False,
                    busy=0,
                    serving=False,
                    heartbeat_age_ms=0,
                    credential_ms=None,
                )
            )

        self._worker(node).put(f"resume {turn}", work)

    def _told(self, node: str, turn: int, fence: int) -> Mapping[str, str]:
        return {**self._facts, "node": node, "turn": str(turn), "fence": str(fence)}

    def _worker(self, node: str) -> Worker:
        worker = self._workers.get(node)
        if worker is None:
            worker = self._workers[node] = Worker(
                f"hook {node}",
                lambda error: self._hear(Unreachable(node=node, reason=str(error))),
            )
        return worker


def _report(raw: bytes, node: str, turn: int, *, serving: bool) -> HoldReport:
    """Read what `drained` answered; nothing at all means that no work is left."""
    where = f"the hook's answer about {node}"
    item = Object(decode_foreign(raw or b"{}", limits=DEFAULT_LIMITS, where=where), where)
    return HoldReport(
        node=node,
        turn=turn,
        held=True,
        busy=item.integer("busy") if item.has("busy") else 0,
        serving=item.boolean("serving") if item.has("serving") else serving,
        heartbeat_age_ms=item.integer("heartbeat_age_ms") if item.has("heartbeat_age_ms") else 0,
        credential_ms=item.optional_integer("credential_ms") if item.has("credential_ms") else None,
    )


def _failed(verb: str, place: str, error: object) -> Failed:
    return Failed("hook-failed", f"the hook {verb} failed", got=error, where=place, retryable=True)
