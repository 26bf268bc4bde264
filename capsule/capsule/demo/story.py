"""What the demo shows, in order: every command that it runs could be typed by hand.

The story checks what it tells: a step that comes out differently ends the demo with an error.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from capsule.demo.outage import Answer, Watcher, ask, await_answer
from capsule.demo.workspace import Workspace
from capsule_manifest.errors import ExitCode, Failed

__all__ = ["NodeRow", "Story"]

_KEYS: Final = ("release", "route", "trust", "controller")
_OUTPUT_LINES_MAX: Final = 14
_SHOWN_CHARACTERS: Final = 380
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One line of the last table. `outage_ms` is the longest in all of the demo's changes."""

    node: str
    release: str
    state: str
    outage_ms: int
    receipts: int


@dataclass(kw_only=True)
class Story:
    """Tell the demo through `say`; the workspace does the work."""

    workspace: Workspace
    say: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)
    outages: dict[str, int] = field(default_factory=dict)

    def tell(self) -> list[NodeRow]:
        """Run the whole demo and return its last table.

        Raises:
            Failed: `demo-failed` with the output of the command that came out differently.
        """
        self._chapter("Keys and trust: who may release, who may route, who may order")
        self.workspace.prepare()
        self._keys()
        first = self._release(1, "Release 1: lock, build and sign")
        self._chapter("Stage it on three hosts; they are met for the first time")
        self._stage(first)
        self._chapter("Ask every host what it is, then roll out: one at a time, the floor is two")
        self._rollout(first, expected=ExitCode.DONE)
        self._serving("1.0.0")
        second = self._release(2, "Release 2: other code, another wheel, another unit")
        self._chapter("Stage it and roll it out; outages are measured from outside")
        self._stage(second)
        self._watched(lambda: self._rollout(second, expected=ExitCode.DONE))
        self._serving("2.0.0")
        third = self._release(3, "Release 3: it ends two seconds after its start")
        self._chapter("Roll it out: n1 restores release 2 by itself, nobody else is touched")
        self._stage(third)
        self._watched(lambda: self._rollout(third, expected=ExitCode.NODES_HELD))
        self._run("rollout", "status", *self._policy_option(), expected=ExitCode.NODES_HELD)
        self._serving("2.0.0")
        self._chapter("What the hosts have signed")
        self._run("receipts", "verify", "--lane", "all", *self._home_options())
        return self._rows()

    def _keys(self) -> None:
        key = self.workspace.key
        for name in _KEYS:
            self._run("key", "generate", "--owner", f"{name}-team", "--out", str(key(name)))
        public = {name: f"{key(name)}.pub" for name in _KEYS}
        self._run(
            "trust", "init", "--product", "example/hello",
            "--release-key", public["release"],
            "--route-key", public["route"],
            "--trust-key", public["trust"],
            "--output", str(self.workspace.policy),
        )  # fmt: skip

    def _release(self, number: int, title: str) -> Path:
        self._chapter(title)
        if number > 1:
            self.workspace.apply(number)
        self._run("lock")
        self.workspace.commit(f"release {number}")
        built = self.workspace.folder / "capsules"
        self._run("build", "--key", str(self.workspace.key("release")), "--output", str(built))
        (capsule,) = built.glob(f"*-{number}-*.capsule")
        self._run("verify", str(capsule), "--policy", str(self.workspace.policy))
        return capsule

    def _stage(self, capsule: Path) -> None:
        self._run(
            "stage", str(capsule), "--lane", "all",
            "--fleet", str(self.workspace.fleet),
            "--policy", str(self.workspace.policy),
            "--route-key", str(self.workspace.key("route")),
            "--controller-key", str(self.workspace.key("controller")),
        )  # fmt: skip

    def _rollout(self, capsule: Path, *, expected: ExitCode) -> None:
        self._run("preflight", str(capsule), *self._policy_option())
        self._run(
            "rollout", "start", str(capsule), *self._policy_option(),
            "--controller-key", str(self.workspace.key("controller")),
            expected=expected,
        )  # fmt: skip

    def _policy_option(self) -> tuple[str, str]:
        return ("--policy", str(self.workspace.policy))

    def _watched(self, change: Callable[[], None]) -> None:
        watchers = {node: Watcher(port) for node, port in self.workspace.ports.items()}
        for watcher in watchers.values():
            watcher.start()
        try:
            change()
        finally:
            outages = {node: watcher.stop() for node, watcher in watchers.items()}
        for node, outage_ms in outages.items():
            self.say(f"  {node} did not answer for {outage_ms} ms")
            self.outages[node] = max(self.outages.get(node, 0), outage_ms)

    def _serving(self, release: str) -> None:
        # A restore ends when the process stays up; its first answer may come a moment later.
        answers = {node: await_answer(port) for node, port in self.workspace.ports.items()}
        for node, answer in answers.items():
            if not isinstance(answer, Answer) or answer.release != release:
                raise Failed(
                    "demo-failed",
                    "a host serves something else",
                    expected=f"release {release}",
                    got=answer.release if answer else "no answer",
                    where=node,
                )
        self.say(f"  {', '.join(answers)} answer with release {release}")

    def _rows(self) -> list[NodeRow]:
        status = self._json("status", "--fleet", str(self.workspace.fleet))
        receipts = self._json("receipts", "list", "--lane", "all", *self._home_options())
        rows = []
        for node, port in self.workspace.ports.items():
            answer = ask(port)
            rows.append(
                NodeRow(
                    node=node,
                    release=answer.release if answer else "none",
                    state=status["nodes"][node]["state"],
                    outage_ms=self.outages.get(node, 0),
                    receipts=len(receipts["nodes"][node]),
                )
            )
        return rows

    def _home_options(self) -> tuple[str, ...]:
        return (
            "--fleet", str(self.workspace.fleet),
            "--controller-key", str(self.workspace.key("controller")),
        )  # fmt: skip

    def _json(self, *arguments: str) -> dict[str, dict[str, dict[str, str]]]:
        code, output = self.workspace.run(*arguments, "--json")
        if code != ExitCode.DONE:
            raise _unexpected(arguments, ExitCode.DONE, code, output)
        document: dict[str, dict[str, dict[str, str]]] = json.loads(output)
        return document

    def _run(self, *arguments: str, expected: ExitCode = ExitCode.DONE) -> None:
        shown = " ".join(arguments).replace(f"{self.workspace.folder}/", "")
        self.say(f"$ capsule {shown}")
        code, output = self.workspace.run(*arguments)
        if code != expected:
            raise _unexpected(arguments, expected, code, output)
        lines = output.replace(f"{self.workspace.folder}/", "").splitlines()
        if len(lines) > _OUTPUT_LINES_MAX:
            left_out = len(lines) - _OUTPUT_LINES_MAX
            half = _OUTPUT_LINES_MAX // 2
            lines = [*lines[:half], f"… {left_out} lines …", *lines[-half:]]
        for line in lines:
            self.say(f"  {line}")
        if expected != ExitCode.DONE:
            self.say(f"  exit code {int(code)}: as it should be")

    def _chapter(self, title: str) -> None:
        self.say("")
        self.say(f"[{time.monotonic() - self.started:5.1f} s] {title}")


def _unexpected(arguments: tuple[str, ...], expected: int, code: int, output: str) -> Failed:
    return Failed(
        "demo-failed",
        f"`capsule {arguments[0]}` came out differently",
        expected=f"exit code {int(expected)}",
        got=f"{code}: {output[-_SHOWN_CHARACTERS:]}",
    )
