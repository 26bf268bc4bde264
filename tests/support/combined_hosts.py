"""Two hosts of the lab, one with a Nix of its own, on which a combined capsule is installed."""

import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from capsule.builder.inspection import component_tree, inspect_capsule
from capsule.builder.opened import open_capsule
from support.combined import TARGETS, CombinedRelease
from support.combined_bills import Bills, add_sets
from support.greeting import GREETED
from support.lab.fleet import Lab
from support.lab.host import LabHost
from support.lab.packages import install_packages
from support.lab.rows import Rows

__all__ = ["CombinedHosts"]

PLATFORM = "bookworm"
PORT = 8000
KEYS = ("--policy", "trust.json", "--controller-key", "controller.key")
CAPSULE = "/opt/capsule/bin/capsule"
NO_USERS = ("--option", "build-users-group", "")


@dataclass(kw_only=True)
class CombinedHosts:
    """The hosts of one run, and how long staging and installing took."""

    lab: Lab
    release: CombinedRelease
    capsule: Path
    rows: Rows
    bills: Bills
    expected_answer: str
    took: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Boot, stage, collect garbage, install, look, damage, look again."""
        plain, with_nix = self.lab.grow(2)
        self.hosts = {"without Nix": plain, "with Nix": with_nix}
        self._give_nix(with_nix)
        self._write_fleet()
        told = self._capsule("stage", str(self.capsule), "--lane", "all", *KEYS,
                             "--route-key", "route.key")  # fmt: skip
        self.rows.add("both hosts, after staging", expected="staged, staged", got=_states(told))
        self._collect(with_nix)
        nodes = [word for node in self._nodes() for word in ("--node", node)]
        told = self._capsule("install", str(self.capsule), *nodes, *KEYS)
        self.rows.add("both hosts, after installing", expected="committed, committed",
                      got=_states(told))  # fmt: skip
        for name, host in self.hosts.items():
            self._look(name, host)
        self._damage(with_nix, "with Nix")
        self._damage(plain, "without Nix")

    def _nodes(self) -> dict[str, LabHost]:
        return {f"n{place}": host for place, host in enumerate(self.hosts.values(), 1)}

    def _write_fleet(self) -> None:
        lines = ["format = 1", 'product = "acme/combined"', "[fleet]", "floor = 0",
                 "max_unavailable = 2", 'guard_min = "L0"']  # fmt: skip
        for node, host in self._nodes().items():
            lines += [
                f"[nodes.{node}]", f'address = "{host.address}"', 'user = "root"',
                f'host_key = "{host.host_key}"', 'role = "web"', f'platform = "{PLATFORM}"',
                'lane = "a"', f'vars = {{ port = "{PORT}" }}',
            ]  # fmt: skip
        (self.release.folder / "fleet.toml").write_text("\n".join(lines) + "\n")
        self.release.environment["CAPSULE_SSH_IDENTITY"] = str(self.lab.client_key)

    def _capsule(self, *words: str) -> str:
        began = time.monotonic()
        done = self.release.run(*words, "--json")
        self.took[words[0]] = round(time.monotonic() - began, 1)
        return done.stdout

    # --- a host's own Nix -----------------------------------------------------------------------
    def _give_nix(self, host: LabHost) -> None:
        install_packages(host, "nix-bin")
        # A path of its own that nothing roots.
        self.own = host.run("nix-store", *NO_USERS, "--add", "/etc/debian_version").stdout.strip()
        # A path of the closure's own name that says another thing: Nix would keep it, and run it.
        self.evil = f"/nix/store/{self.bills.closure_root()}/bin/greet"
        host.write(self.evil, "#!/bin/sh\necho evil > /run/greet.txt\nexec sleep 1000\n", 0o755)

    def _collect(self, host: LabHost) -> None:
        """Let the host's own collector run between staging and installing."""
        host.run("nix-collect-garbage", "-d", *NO_USERS, timeout_s=120)
        gone = not host.path(self.own).exists() and not host.path(self.evil).exists()
        self.rows.add(
            "nix-collect-garbage after staging took what nothing roots", expected="gone",
            got="gone" if gone else "still there",
        )  # fmt: skip
        # It is back, as it would be on a host whose own release of the same package differs.
        host.write(self.evil, "#!/bin/sh\necho evil > /run/greet.txt\nexec sleep 1000\n", 0o755)
        self._verify("with Nix, after nix-collect-garbage", host, expected=0)

    # --- what is seen on a host -----------------------------------------------------------------
    def _look(self, name: str, host: LabHost) -> None:
        rows, python = self.rows, TARGETS[PLATFORM][1]
        generation = host.path("/opt/capsule/current").resolve().name
        folder = host.path(f"/opt/capsule/generations/{generation}")
        rows.case(f"{name}: the service of the wheels answers", expected=self.expected_answer,
                  run=lambda: self._answer(host))  # fmt: skip
        site = folder / f"deps/lib/python{python}/site-packages"
        add_sets(rows, f"{name}: wheels of the service, by pip list",
                 _pip_list(site), self.bills.wheels("deps", PLATFORM))  # fmt: skip
        (program,) = host.path("/opt/capsule/runtime").glob("*/site")
        wheels = self.bills.wheels(f"runtime-{PLATFORM}", PLATFORM)
        add_sets(rows, f"{name}: wheels of the host program, by pip list",
                 _pip_list(program), wheels)  # fmt: skip
        rows.case(f"{name}: the closure's program ran", expected=GREETED.strip(),
                  run=lambda: _read(host, "/run/greet.txt"))  # fmt: skip
        rows.case(f"{name}: with the closure's own C library", expected="/nix/store",
                  run=lambda: _library_of(host))  # fmt: skip
        rows.case(f"{name}: skopeo reads the image", expected=self.bills.image_config(),
                  run=lambda: _image_config(folder / "base"))  # fmt: skip
        others = [
            item["name"]
            for item in self.bills.release["components"]
            if item["platforms"] and PLATFORM not in item["platforms"]
        ]
        rows.add(f"{name}: components of other platforms, in the capsule and here",
                 expected=f"{len(others)} and 0", ok=bool(others) and not self._foreign(host),
                 got=f"{len(others)} and {len(self._foreign(host))}")  # fmt: skip
        self._verify(name, host, expected=0)

    def _answer(self, host: LabHost) -> str:
        with urllib.request.urlopen(f"http://{host.address}:{PORT}/", timeout=5) as got:
            told = json.load(got)
        version = ".".join(str(part) for part in told["python"])
        return f"{version}, {len(told['wheels'])}, {len(told['imported'])}"

    def _foreign(self, host: LabHost) -> set[str]:
        """Return objects in the host's store that only components of other platforms have."""
        source = open_capsule(self.capsule)
        objects: dict[bool, set[str]] = {True: set(), False: set()}
        for component in inspect_capsule(source).release.components:
            is_own = not component.platforms or PLATFORM in component.platforms
            entries = component_tree(source, component).entries
            objects[is_own] |= {entry.object.hex() for entry in entries if entry.object}
        store = {
            path.name.removesuffix(".x") for path in host.path("/opt/capsule/store").glob("*/*")
        }
        assert store, "the store is empty"
        return (objects[False] - objects[True]) & store

    def _verify(self, name: str, host: LabHost, *, expected: int) -> None:
        done = host.run(CAPSULE, "verify", "--json", check=False, timeout_s=120)
        self.rows.add(f"{name}: capsule verify on the host", expected=f"exit code {expected}",
                      got=f"exit code {done.returncode}")  # fmt: skip

    def _damage(self, host: LabHost, name: str) -> None:
        """Edit a path of the closure; the host finds it, and the next staging mends it."""
        generation = host.path("/opt/capsule/current").resolve().name
        root = f"/opt/capsule/generations/{generation}/greet/nix/store/{self.bills.closure_root()}"
        edited = f"{root}/bin/greet"
        host.run("sh", "-c", f"rm {edited}; echo '#!/bin/sh' > {edited}; chmod 555 {edited}")
        done = host.run(CAPSULE, "verify", "--json", check=False, timeout_s=120)
        is_named = self.bills.closure_root() in done.stdout + done.stderr
        self.rows.add(f"{name}: an edited path of the closure is found", expected="10, named",
                      got=f"{done.returncode}, {'named' if is_named else 'not named'}")  # fmt: skip


def _states(told: str) -> str:
    return ", ".join(node["state"] for node in json.loads(told)["nodes"].values())


def _read(host: LabHost, path: str) -> str:
    return host.run("cat", path).stdout.strip()


def _pip_list(folder: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--path", str(folder), "--format=json",
         "--disable-pip-version-check"],
        check=True, capture_output=True,
    )  # fmt: skip
    listed: list[dict[str, Any]] = json.loads(done.stdout)
    return {f"{canonicalize_name(item['name'])}=={item['version']}" for item in listed}


def _library_of(host: LabHost) -> str:
    shown = host.run("systemctl", "show", "--value", "-p", "MainPID", "greet.service")
    maps = host.run("cat", f"/proc/{int(shown.stdout)}/maps").stdout
    libraries = {line.split()[-1] for line in maps.splitlines() if "libc" in line}
    outside = sorted(path for path in libraries if not path.startswith("/nix/store/"))
    return "/nix/store" if libraries and not outside else f"{outside or 'none'}"


def _image_config(layout: Path) -> str:
    done = subprocess.run(
        ["skopeo", "inspect", "--raw", f"oci:{layout}"], check=True, capture_output=True
    )
    digest: str = json.loads(done.stdout)["config"]["digest"]
    return digest
