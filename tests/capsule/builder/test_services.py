"""What a service costs must fit into the first deadline, and is said as arithmetic."""

import pytest

from capsule.builder.committed import committed_files
from capsule.builder.config import ServiceSource, UnitSource
from capsule.builder.git_source import open_work_tree
from capsule.builder.services import RESERVE_MS, check_budget, check_unit_names, service_input
from capsule_manifest.release import Budgets, Probe, Unit
from support.failures import fails_with
from support.repositories import Repository


def unit(name, start_s, stop_s, soak_s):
    return Unit(
        name=name, file=name, start_timeout_ms=start_s * 1000, stop_timeout_ms=stop_s * 1000,
        soak_ms=soak_s * 1000, probe=None,
    )  # fmt: skip


def build(tmp_path, units, probe=None):
    repository = Repository(tmp_path / "work")
    repository.commit({f"units/{name}": text.encode() for name, text in units.items()})
    source = ServiceSource(
        name="web",
        platforms=("trixie", "bookworm"),
        units=tuple(UnitSource(file=f"units/{name}", soak_ms=1, probe=probe) for name in units),
        guarded_steps=(),
    )
    return service_input(source, committed_files(open_work_tree(repository.folder), (source,)))


def test_units_stop_and_start_one_after_the_other_and_soak_together():
    units = (unit("a.service", 10, 5, 2), unit("b.service", 20, 7, 3))
    needed_ms = (10 + 20 + 5 + 7 + 3) * 1000 + RESERVE_MS
    check_budget("web", units, Budgets(d1_ms=needed_ms))
    with fails_with("budget-exceeded") as caught:
        check_budget("web", units, Budgets(d1_ms=needed_ms - 1))
    assert caught.value.got == "stop 12 + start 30 + soak 3 + 10 s = 55 s"
    assert "role web: a.service, b.service" in caught.value.where


def test_two_units_of_one_name_in_a_role_are_refused():
    check_unit_names("web", (unit("a.service", 1, 1, 0), unit("b.service", 1, 1, 0)))
    with fails_with("unit-not-allowed") as caught:
        check_unit_names("web", (unit("a.service", 1, 1, 0), unit("a.service", 2, 2, 0)))
    assert caught.value.got == "a.service"


def test_a_role_without_units_costs_nothing():
    check_budget("data", (), Budgets(d1_ms=RESERVE_MS))
    with fails_with("budget-exceeded"):
        check_budget("data", (), Budgets(d1_ms=RESERVE_MS - 1))


def test_units_are_files_of_their_own_name_sorted_with_their_times(tmp_path):
    text = "[Service]\nExecStart=/bin/a\nTimeoutStartSec={}\nTimeoutStopSec=1min\n"
    component, units = build(tmp_path, {"b.service": text.format(3), "a.service": text.format(4)})
    assert [entry.path for entry in component.entries] == ["a.service", "b.service"]
    assert component.platforms == ("bookworm", "trixie")
    assert [(item.name, item.start_timeout_ms, item.stop_timeout_ms) for item in units] == [
        ("a.service", 4000, 60_000), ("b.service", 3000, 60_000),
    ]  # fmt: skip


@pytest.mark.parametrize("order", [0, 1])
def test_the_later_of_two_timeouts_counts_as_on_the_host(tmp_path, order):
    lines = ["TimeoutStartSec=5", "TimeoutSec=90"]
    text = "[Service]\nExecStart=/bin/a\nTimeoutStopSec=1\n" + "\n".join(
        reversed(lines) if order else lines
    )
    _, (found,) = build(tmp_path, {"a.service": text})
    assert found.start_timeout_ms == (5000 if order else 90_000)


@pytest.mark.parametrize("missing", ["TimeoutStartSec", "TimeoutStopSec"])
def test_a_timeout_that_is_left_to_systemd_is_refused(tmp_path, missing):
    lines = [f"{key}=1" for key in ("TimeoutStartSec", "TimeoutStopSec") if key != missing]
    with fails_with("unit-invalid") as caught:
        build(tmp_path, {"a.service": "[Service]\nExecStart=/bin/a\n" + "\n".join(lines)})
    assert missing in caught.value.what


@pytest.mark.parametrize("place", ["unit", "probe"])
def test_an_unknown_placeholder_is_refused_when_it_is_built(tmp_path, place):
    wrong = "@{nonsense}"
    text = "[Service]\nExecStart=/bin/a {}\nTimeoutSec=1\n"
    probe = Probe(http=f"http://127.0.0.1:{wrong if place == 'probe' else 80}/", timeout_ms=1)
    with fails_with("template-invalid"):
        build(tmp_path, {"a.service": text.format(wrong if place == "unit" else "")}, probe)


def test_an_unknown_type_is_refused_by_line(tmp_path):
    text = "[Service]\nType=magic\nExecStart=/bin/a\nTimeoutSec=1\n"
    with fails_with("unit-not-allowed") as caught:
        build(tmp_path, {"a.service": text})
    assert caught.value.where.endswith("units/a.service:2")
