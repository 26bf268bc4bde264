"""How long a service is silent: an install beside a plain restart, `./dev lab outage [ROUNDS]`.

Both are seen from the host itself, every 2 ms, in turns on one host, so that only their ratio says
something. A restart knows no proof and no way back; an install may not take much longer for them.
"""

import statistics
import sys
import time

from support.lab.fleet import Lab
from support.lab.installs import InstallHost

RESTART_S = 3.0
INSTALL_S = 6.0
RATIO_MAX = 2.0


def main() -> int:
    """Measure, print, and return 1 if the ratio is above its limit."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    restarts, installs = [], []
    with Lab.open() as lab:
        on = InstallHost(host=lab.new_host())
        on.put_program()
        on.stage(1)
        assert on.install(1)["result"] == "committed"
        for counter in range(2, rounds + 2):
            on.stage(counter)
            with on.watch(RESTART_S) as silences:
                time.sleep(1)
                on.host.run("systemctl", "restart", "hello.service")
            restarts += silences
            with on.watch(INSTALL_S) as silences:
                time.sleep(1)
                on.begin(counter, confirm="local")
            installs += silences
            assert on.drive("finish", str(counter))["result"] == "committed"
    plain, ours = statistics.median(restarts), statistics.median(installs)
    print(f"restart: {sorted(round(s * 1000) for s in restarts)} ms, median {plain * 1000:.0f}")
    print(f"install: {sorted(round(s * 1000) for s in installs)} ms, median {ours * 1000:.0f}")
    passed = ours <= plain * RATIO_MAX
    print(f"ratio {ours / plain:.2f}, at most {RATIO_MAX}")
    print(f"{int(passed)} passed, {int(not passed)} failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
