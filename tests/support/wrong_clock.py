"""Processes that see another time of day, as on a machine whose battery is empty.

A library that is loaded before all others answers for the wall clock of the C library; the boot
clock stays right, as it does on such a machine. Neither our code nor anybody's is changed for it.
"""

import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

__all__ = ["WrongClock"]

_SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t told(void) {
    const char *text = getenv("WRONG_CLOCK");
    return text ? atoll(text) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, id, now);
    now->tv_sec = told();
    now->tv_nsec = 0;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    now->tv_sec = told();
    now->tv_usec = 0;
    return 0;
}

time_t time(time_t *now) {
    if (now) *now = told();
    return told();
}
"""


class WrongClock:
    """A folder with the library, and the moment that it tells."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is here")
        folder.mkdir(parents=True, exist_ok=True)
        self._library = folder / "wrong_clock.so"
        self._moment = folder / "moment"
        source = folder / "wrong_clock.c"
        source.write_text(_SOURCE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source)], check=True
        )
        self.set(datetime.now(tz=UTC))

    def set(self, moment: datetime) -> None:
        """Let every process that starts from now on see `moment`, for as long as it runs."""
        self._moment.write_text(str(int(moment.timestamp())))

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which any program sees the moment that was set last."""
        return {"LD_PRELOAD": str(self._library), "WRONG_CLOCK": self._moment.read_text()}

    def runtime(self, runtime: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return a host program whose launcher, which clears the environment, sets these again."""
        name = "site/capsule_installer/bin_capsule.sh"
        right = b"exec env -i "
        assert runtime[name].count(right) == 1, "the launcher starts in another way"
        wrong = f"exec env -i LD_PRELOAD='{self._library}' WRONG_CLOCK=$(cat '{self._moment}') "
        return {**runtime, name: runtime[name].replace(right, wrong.encode())}
