"""What every test shares: the golden-file option, markers that depend on the machine, seeds.

Hypothesis runs few examples here, so that all tests stay quick; `HYPOTHESIS_PROFILE=long` runs
many. A failing example prints how to repeat it.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# Two shared cores can stall any example, so time is limited per test and not per example. Where CI
# is set hypothesis would repeat the same examples for ever; each run looks at others.
_COMMON = settings(
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", _COMMON, max_examples=60)
settings.register_profile("long", _COMMON, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="rewrite golden files from what the code prints now; read the diff before committing",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Skipped and not deselected: a report must say that something was not checked, and why.
    not_root = pytest.mark.skip(reason="needs to be root")
    not_lab = pytest.mark.skip(reason="needs root and real hosts: ./dev lab test")
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(not_root)
        if item.get_closest_marker("lab") and "CAPSULE_LAB" not in os.environ:
            item.add_marker(not_lab)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare text with a committed file; `--update-goldens` writes the file instead."""
    update = request.config.getoption("--update-goldens")

    def check(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        shown = path.relative_to(ROOT)
        assert path.exists(), f"{shown} is missing; write it with ./dev docs"
        committed = path.read_text(encoding="utf-8")
        assert committed == text, f"{shown} is not what the code says; write it with ./dev docs"

    return check
