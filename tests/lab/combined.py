"""One capsule of everything, built without network, on hosts: `./dev lab combined --json`.

This tree's own commit, 60 wheels for four targets, a closure of Nix of more than 50 MB and an image
of a Debian tree become one capsule: locked with pip's own index, Debian's Nix and a registry on
loopback, built in a namespace without network, then staged and installed on two hosts, of which one
has a Nix of its own. Each row says what was to be seen and what was.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.combined import TARGETS, WHEELS, CombinedRelease, locked_wheels
from support.combined_bills import Bills, add_sets
from support.combined_hosts import CombinedHosts
from support.debian_image import IMAGE_PACKAGES, debian_image, debian_tree, installed_in
from support.greeting import GREETING_PATHS, PACKAGES
from support.lab.base import cache_folder, mirror
from support.lab.commands import LabError, installed
from support.lab.fleet import Lab
from support.lab.rows import Rows
from support.nix import IsolatedNix
from support.registry import REGISTRY_PACKAGES, LoopbackRegistry

BROKEN = (AssertionError, LabError, LookupError, OSError, subprocess.SubprocessError, ValueError)
CLOSURE_NUMBERS = 7_000_000
CLOSURE_BYTES = 50_000_000
# What the service imports: native modules most of all.
MODULES = ("blake3", "cryptography", "httptools", "orjson", "pydantic", "sqlalchemy", "sigstore")


class Combined:
    """The run: its release, its rows, and how long its parts took, in seconds."""

    def __init__(self, folder: Path, rows: Rows) -> None:
        self.folder, self.rows = folder, rows
        self.took: dict[str, float] = {}
        self.nix = IsolatedNix(folder / "nix")
        self.rootfs = folder / "bundle" / "rootfs"

    def timed(self, name: str, *words: str, is_offline: bool = False) -> str:
        """Run `capsule` and return what it prints for programs."""
        began = time.monotonic()
        done = self.release.run(*words, "--json", is_offline=is_offline)
        self.took[name] = round(time.monotonic() - began, 1)
        return done.stdout

    # --- this tree's flake ----------------------------------------------------------------------
    def flake(self) -> None:
        """Check the flake of this tree with Debian's Nix."""
        tree = self.release.project
        version = self.nix.run("nix", "--version").split()[-1]
        self.rows.add(
            "nix is Debian 12's", expected="2.8.0", got=version, ok=version.startswith("2.8")
        )
        asked = ("nix-instantiate", "--eval", "--strict", "--json", str(tree / "nix/tests.nix"))
        self.rows.case(
            "nix: the unit tests of the flake's library", expected="[]",
            run=lambda: self.nix.run(*asked).strip(),
        )  # fmt: skip
        stub = f"path:{tree}/nix/testing/nixpkgs-stub"
        check = ("nix", "flake", "check", f"path:{tree}", "--no-write-lock-file",
                 "--override-input", "nixpkgs", stub)  # fmt: skip
        self.rows.case(
            "nix flake check", expected="passed",
            run=lambda: "passed" if self.nix.run(*check) is not None else "",
        )  # fmt: skip

    # --- inputs ---------------------------------------------------------------------------------
    def inputs(self) -> None:
        """Make the image, publish it, write the release and lock it: the last use of a network."""
        layout = self.folder / "layout"
        debian_image(debian_tree(cache_folder(), mirror()), layout, "1.0", self.rootfs.parent)
        wheels = locked_wheels()
        self.rows.add("wheels that are required", expected=str(WHEELS), got=str(len(wheels)))
        with LoopbackRegistry(self.folder / "registry") as registry:
            self.release = CombinedRelease(
                folder=self.folder,
                image=registry.push(layout, "1.0", "acme/base"),
                numbers=CLOSURE_NUMBERS,
                requirements="\n".join(wheels.values()) + "\n",
                modules=MODULES,
            )
            self.release.environment = {
                **os.environ,
                **self.nix.environment,
                "HOME": os.environ["HOME"],
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                "XDG_STATE_HOME": str(self.folder / "state"),
                "SSL_CERT_FILE": str(registry.certificates),
            }
            self.commit = self.release.write()
            told = json.loads(self.timed("lock", "lock", "--release", "release/release.toml"))
            self.rows.case(
                "the registry is reached while locking", expected="reached",
                run=lambda: self.release.reaches(registry.name, is_offline=False),
            )  # fmt: skip
            self.rows.case(
                "nothing is reached where it is built", expected="unreachable",
                run=lambda: self.release.reaches(registry.name, is_offline=True),
            )  # fmt: skip
        least = WHEELS * len(TARGETS) + 2
        self.rows.add(
            "pins in the lock", expected=f"at least {least}", got=str(told["pins"]),
            ok=told["pins"] >= least,
        )  # fmt: skip

    # --- the capsule ----------------------------------------------------------------------------
    def secrets(self) -> None:
        """Show that a build ends at a secret, and that a waiver names what is meant."""
        waivers = self.release.work / "secret-waivers.toml"
        kept = waivers.read_bytes()
        waivers.write_bytes(kept.replace(b'"app"', b'"base"'))
        self.release.commit_all()
        done = self.release.run(*self._build("refused"), codes=(12,), is_offline=True)
        found = "secret-found" if "secret-found" in done.stderr else done.stderr[-200:]
        self.rows.add("a secret without a waiver ends the build", expected="secret-found",
                      got=found)  # fmt: skip
        waivers.write_bytes(kept)
        self.release.commit_all()

    def build(self) -> None:
        """Build twice without network, sign and verify."""
        self.release.commit_all()
        self.secrets()
        built = json.loads(self.timed("build", *self._build("dist"), is_offline=True))
        self.rows.add("secrets that the waiver lets through", expected="1",
                      got=str(built["waived_secrets"]))  # fmt: skip
        again = json.loads(self.timed("build again", *self._build("twice"), is_offline=True))
        self.rows.add("two builds have one id", expected=built["capsule"], got=again["capsule"])
        self.capsule = self.folder / str(built["folder"])
        self.release.trust()
        told = json.loads(self.timed("verify", "verify", str(self.capsule), "--policy",
                                     "trust.json", is_offline=True))  # fmt: skip
        self.rows.add("the capsule that is verified", expected=built["capsule"],
                      got=told["capsule"])  # fmt: skip

    def _build(self, output: str) -> tuple[str, ...]:
        return ("build", "--release", "release/release.toml", "--key", "release.key",
                "--output", output)  # fmt: skip

    def bills(self) -> None:
        """Compare the bills with what each ecosystem's own tool lists."""
        self.found = bills = Bills(self.capsule)
        rows = self.rows
        rows.add("CycloneDX 1.6 schema", expected="valid", got=bills.cyclonedx_problem() or "valid")
        rows.add("SPDX 2.3 rules", expected="valid", got=bills.spdx_problem() or "valid")
        rows.add("SLSA v1 provenance, with this project's commit and every pin", expected="whole",
                 got=bills.provenance_problem(self.commit) or "whole")  # fmt: skip
        for target in TARGETS:
            wanted = self.release.required_on(target)
            add_sets(rows, f"wheels on {target}", wanted, bills.wheels("deps", target))
        add_sets(rows, "packages in the image, by dpkg-query",
                      {" ".join(item) for item in installed_in(self.rootfs)},
                      bills.os_packages())  # fmt: skip
        paths = set(self.nix.run("nix-store", "-qR", f"/nix/store/{bills.closure_root()}").split())
        rows.add("paths in the closure", expected=str(GREETING_PATHS), got=str(len(paths)))
        hashes = {path: self.nix.run("nix-store", "-q", "--hash", path).strip() for path in paths}
        add_sets(rows, "closure, by nix-store",
                      {f"{path.rpartition('/')[2]} {self._hex(hashes[path])}" for path in paths},
                      bills.store_paths())  # fmt: skip
        size = bills.component_bytes("greet")
        rows.add("bytes in the closure", expected=f"at least {CLOSURE_BYTES}", got=str(size),
                 ok=size >= CLOSURE_BYTES)  # fmt: skip

    def _hex(self, digest: str) -> str:
        return self.nix.run("nix-hash", "--type", "sha256", "--to-base16",
                            digest.removeprefix("sha256:")).strip()  # fmt: skip

    # --- hosts ----------------------------------------------------------------------------------
    def hosts(self) -> None:
        """Stage and install it on a host without Nix and on one with it."""
        with Lab.open() as lab:
            hosts = CombinedHosts(
                lab=lab, release=self.release, capsule=self.capsule, rows=self.rows,
                bills=self.found, expected_answer=f"3.11, {WHEELS}, {len(MODULES)}",
            )  # fmt: skip
            hosts.run()
            self.took.update(hosts.took)


def main() -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(prog="./dev lab combined", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there and keep it")
    told = parser.parse_args()
    installed(PACKAGES | IMAGE_PACKAGES | REGISTRY_PACKAGES)
    rows = Rows(as_json=told.json)
    with tempfile.TemporaryDirectory(prefix="capsule-combined-") as name:
        run = Combined(told.keep or Path(name), rows)
        for part in (run.inputs, run.flake, run.build, run.bills, run.hosts):
            try:
                part()
            except BROKEN as error:
                # Every later part needs what this one makes.
                rows.add(f"{part.__name__}: to the end", expected="done", got=str(error)[-1000:])
                break
    print(f"seconds: {json.dumps(run.took)}", file=sys.stderr)
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
