"""Cut the power of a host at many moments of an install: `./dev lab power-cuts 20 [SEED]`.

Each round orders one more release and cuts the power some time later, from the order's acceptance
to past the commit. What was not fsynced is lost. After the boot one release must be all there is,
it must serve, and it must be the new one if and only if the host had committed it. A commit that
was there for a third of a second before the cut has been made durable, so it must not be lost.
"""

import random
import sys
import time
from pathlib import Path

from support.lab.commands import wait_until
from support.lab.fleet import Lab
from support.lab.installs import InstallHost, op_id_of

DURABLE_S = 0.3
AFTER_S = 2.5  # an install takes about 1.5 s from its acceptance, with a soak of 0.2 s
OPS = "/var/lib/capsule/state/ops"


def main() -> int:
    """Run the rounds and return 1 if one of them left a mixture."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with Lab.open() as lab:
        on = InstallHost(host=lab.new_host())
        on.put_program()
        on.stage(1)
        assert on.install(1)["result"] == "committed"
        current, outcomes = 1, []
        for counter in range(2, rounds + 2):
            current, said = cut_once(on, current, counter, chance.uniform(0, AFTER_S))
            outcomes.append(said)
            print(f"{counter - 1:3} {said}", flush=True)
            if said.startswith("MIXTURE"):
                return 1
    committed = sum(said.startswith("committed") for said in outcomes)
    print(f"{rounds} passed, 0 failed")
    print(f"power cuts: {rounds}, of these after the commit: {committed}")
    return 0


def cut_once(on: InstallHost, old: int, new: int, after_s: float) -> tuple[int, str]:
    """Order `new`, cut, boot and judge; return what is installed, and words."""
    on.stage(new)
    on.begin(new, confirm="local")
    time.sleep(after_s)
    folder = on.host.path(f"{OPS}/{op_id_of(new)}")
    promised = is_committed(folder, for_s=DURABLE_S)
    on.host.cut_power()
    on.host.volume.mount()
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    committed = is_committed(folder, for_s=0)
    on.host.boot()
    expected = new if committed else old
    wait_until(lambda: on.look()["answer"] == str(expected), timeout_s=30, what=f"{expected}")
    seen, checked = on.look(), on.drive("verb", "boot")
    chain = on.drive("verb", "receipts", "--json")
    wanted = {"current": str(expected), "answer": str(expected), "held": False}
    word = "committed" if committed else "restored" if "intent" in names else "not begun"
    said = f"{word}, cut {after_s:.2f} s after the order"
    if promised and not committed:
        return expected, f"MIXTURE: a commit was lost: {said}"
    if {name: seen[name] for name in wanted} != wanted or checked["code"] or chain["code"]:
        return expected, f"MIXTURE: {said}: {seen}, {checked}, {chain}"
    return expected, said


def is_committed(folder: Path, *, for_s: float) -> bool:
    """Say whether an op has been committed for some seconds."""
    outcome = folder / "outcome"
    if not outcome.exists() or outcome.samefile(folder / "outcome.restoring"):
        return False
    return time.time() - outcome.stat().st_ctime >= for_s


if __name__ == "__main__":
    sys.exit(main())
