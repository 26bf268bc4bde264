"""Kill a host in every step of an install and of a restore, and boot it: `./dev lab reboot`.

Each case orders one more release, stops the supervisor in one step from outside, kills every
process of the host at once and boots it on the same disk. After that one release must be all there
is, it must serve, and nothing half-switched may ever have been started: every process of the
service is looked at from outside from before the order to the end of the case.

`--json` prints `{"rows": [{"case", "expected", "got", "ok"}]}`; further words choose steps.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from support.lab.fleet import Lab
from support.lab.installs import InstallHost, op_id_of
from support.lab.rows import Rows
from support.lab.stepper import Start, StepMissed, Stepper, watched_starts

UNIT = "hello.service"
# A step that takes less has no middle that differs from its beginning and its end.
MIDDLE_FROM_MS = 4
D2_MS = 20_000
FAVOURED_NICE = -10
COMMITTING = ("commit", "outcome", "result")
Stop = Callable[[Stepper, int], None]
ATTEMPTS = 6  # the middle of a short step is missed now and then


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a host is killed: in a step, so far into it."""

    step: str
    after_s: float

    @property
    def words(self) -> str:
        """Name the moment for a row."""
        return f"{self.step}, {'in the middle' if self.after_s else 'as it begins'}"

    def stop(self, op: Stepper, attempt: int) -> None:
        """Let the op's supervisor stand at this moment, earlier at every further attempt."""
        op.stop_in(self.step, after_s=self.after_s / attempt)


class Reboots:
    """The cases of one host, one after the other: each leaves a release for the next to replace."""

    def __init__(self, on: InstallHost, rows: Rows) -> None:
        self._on = on
        self._rows = rows
        self._current = 0
        self._last = 0
        self._seen = 0  # what was current when a case was judged

    def begin(self) -> tuple[list[Moment], list[Moment]]:
        """Install two releases and let a third fail; return the moments that both kinds have."""
        for _ in range(2):
            self._stage("good")
            assert self._on.install(self._last)["result"] == "committed"
            self._current = self._last
        installing = moments_of(Stepper(self._on.host, op_id_of(self._last)).lines())
        self._stage("crashing")
        assert self._on.install(self._last)["result"] == "restored"
        lines = Stepper(self._on.host, op_id_of(self._last)).lines()
        restoring = [one for one in moments_of(lines) if one.step.startswith("restore-")]
        return installing, restoring

    def between_stage_and_install(self) -> None:
        """Kill the host when a release is staged; it is installed after the boot, as staged."""

        def run() -> str:
            self._stage("good")
            with watched_starts(self._on.host, UNIT) as starts:
                self._on.host.reboot()
                said = self._judge(self._current, starts)
            if self._on.install(self._last)["result"] == "committed":
                self._current = self._last
                said += "; then installed as staged"
            return said

        expected = "old, whole, serving; then installed as staged"
        self._rows.case("between stage and install", expected=expected, run=run)

    def install(self, moment: Moment) -> None:
        """Kill the host in a step of an install: nothing is committed yet."""
        self._killed("install", moment.words, "good", moment.stop)

    def named(self, name: str) -> None:
        """Kill the host when a deciding name has just appeared in the op's folder."""

        def stop(op: Stepper, attempt: int) -> None:
            del attempt
            op.stop_when_there_is(name)

        self._killed("install", f"{name} is there", "good", stop)

    def restore(self, moment: Moment) -> None:
        """Kill the host in a step of the restore of a release that crashes."""
        self._killed("restore", moment.words, "crashing", moment.stop)

    def _killed(self, what: str, moment: str, kind: str, stop: Stop) -> None:
        ends_new, self._seen = False, 0
        may_commit = moment.startswith(COMMITTING)

        def run() -> str:
            nonlocal ends_new
            with watched_starts(self._on.host, UNIT) as starts:
                self._ordered_and_stopped(kind, stop)
                half = [start for start in starts if is_half_switched(start)]
                self._on.host.kill()
                # In the middle of `commit` the outcome may be there, which decides; not before.
                op = Stepper(self._on.host, op_id_of(self._last))
                ends_new = op.is_committed() and may_commit
                starts.clear()
                self._on.host.boot()
                said = self._judge(self._last if ends_new else self._current, starts)
            if half:
                said += f"; half-switched before the kill: {half}"
            return said

        def expected() -> str:
            return f"{'new' if ends_new else 'old'}, whole, serving"

        self._rows.case(f"{what}: {moment}", expected=expected, run=run)
        self._current = self._seen or int(str(self._on.look()["current"]))

    def _ordered_and_stopped(self, kind: str, stop: Stop) -> None:
        """Order releases until one's supervisor stands where it should."""
        for attempt in range(1, ATTEMPTS + 1):
            self._last += 1
            try:
                # Followed while it is ordered: its first steps don't wait for the answer to come.
                with ThreadPoolExecutor(1) as pool:
                    ordered = pool.submit(self._on.order, self._last, kind, d2_ms=D2_MS)
                    stop(Stepper(self._on.host, op_id_of(self._last)), attempt)
                ordered.result()
                return
            except StepMissed:
                if attempt == ATTEMPTS:
                    raise
                self._on.drive("finish", str(self._last))
                self._current = int(str(self._on.look()["current"]))

    def _stage(self, kind: str) -> None:
        self._last += 1
        self._on.stage(self._last, kind)

    def _judge(self, expected: int, starts: list[Start]) -> str:
        """Say what a host is after its boot; "old, whole, serving" is as it should be."""
        on = self._on
        seen = on.judge(expected)
        self._seen = int(str(seen["current"]))
        word = "new" if expected == self._last and seen["current"] == str(self._last) else "old"
        wanted = {"current": str(expected), "answer": str(expected), "held": False}
        faults = [f"{name} {seen[name]!r}" for name in wanted if seen[name] != wanted[name]]
        faults += [
            f"`{verb}` ends with {seen[verb]}" for verb in ("boot", "receipts") if seen[verb]
        ]
        if on.unit(UNIT, "NeedDaemonReload") != "no":
            faults.append("systemd runs other units than lie there")
        if on.host.run("find", "/", "-xdev", "-name", ".*.capsule-*").stdout:
            faults.append("names of the op were left")
        others = {start.generation for start in starts} - {starts[0].generation} if starts else ()
        if not starts or others or not starts[0].generation.startswith(f"{expected}-"):
            faults.append(f"started since the boot: {sorted(s.generation for s in starts)}")
        faults += [f"half-switched: {start}" for start in starts if is_half_switched(start)]
        return ", ".join([word, *(faults or ["whole", "serving"])])


def moments_of(lines: Iterable[dict[str, object]]) -> list[Moment]:
    """Return the beginning of every step, and the middle of those that last."""
    moments = []
    for line in lines:
        if line["state"] != "done":
            continue
        step, took_ms = str(line["name"]), int(str(line["took_ms"]))
        moments.append(Moment(step=step, after_s=0))
        if took_ms >= MIDDLE_FROM_MS:
            moments.append(Moment(step=step, after_s=took_ms / 2000))
    return moments


def is_half_switched(start: Start) -> bool:
    """Say whether a process began while held, or from another release than the host's names."""
    return (
        start.held
        or start.current not in ("", start.generation)
        or f"/generations/{start.generation}/" not in start.folder + "/"
    )


def main() -> int:
    """Run every case, or those of the steps that were named, and return 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="./dev lab reboot", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="only these, such as switch")
    parser.add_argument("--json", action="store_true", help="for programs")
    told = parser.parse_args()
    rows = Rows(as_json=told.json)
    os.nice(FAVOURED_NICE)  # the host waits for us at each of its calls

    def wanted(step: str) -> bool:
        return not told.steps or step in told.steps

    with Lab.open() as lab:
        on = InstallHost(host=lab.new_host())
        on.host.favour()
        on.put_program()
        reboots = Reboots(on, rows)
        installing, restoring = reboots.begin()
        if wanted("stage"):
            reboots.between_stage_and_install()
        for moment in filter(lambda one: wanted(one.step), installing):
            reboots.install(moment)
        for name in filter(wanted, ("outcome", "result")):
            reboots.named(name)
        for moment in filter(lambda one: wanted(one.step), restoring):
            reboots.restore(moment)
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
