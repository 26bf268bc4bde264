"""Errors of the builder: inputs, and what becomes of them."""

from typing import Final

from capsule_manifest.exit_codes import ExitCode

__all__ = ["ROWS"]

ROWS: Final[dict[str, tuple[ExitCode, str]]] = {
    # --- sources, wheels, tools ---
    "archive-refused": (ExitCode.INTEGRITY, "don't use the archive; get another build of it"),
    "cache-failed": (ExitCode.SPACE, "make the cache folder writable, or set XDG_CACHE_HOME"),
    "lock-invalid": (ExitCode.USAGE, "write it again with `capsule lock --refresh`"),
    "lock-missing": (ExitCode.USAGE, "run `capsule lock` and commit release.lock"),
    "lock-stale": (ExitCode.USAGE, "run `capsule lock` and commit release.lock"),
    "manifest-incomplete": (
        ExitCode.USAGE,
        "run `capsule lock` and commit release.lock; `capsule manifest show` lists what is open",
    ),
    "marker-unknowable": (ExitCode.USAGE, "lock without that marker, or remove the requirement"),
    "release-invalid": (ExitCode.USAGE, "correct the named values in release.toml"),
    "release-missing": (ExitCode.USAGE, "write one with `capsule init`, or name it with --release"),
    "requirement-editable": (
        ExitCode.USAGE,
        "build a wheel of the folder, or make it a component of kind source",
    ),
    "requirement-not-pinned": (ExitCode.USAGE, "lock to exact versions, such as with uv or pip"),
    "requirement-without-hash": (ExitCode.USAGE, "lock with hashes (`--generate-hashes`)"),
    "requirements-invalid": (ExitCode.USAGE, "correct the named line and lock again"),
    "requirements-missing": (ExitCode.USAGE, "write the file, or correct its path in release.toml"),
    "runtime-source-missing": (ExitCode.INTERNAL, "install the three distributions together"),
    "source-dirty": (ExitCode.USAGE, "commit or remove the named changes, then build again"),
    "source-empty": (ExitCode.USAGE, "commit the named files, or correct `include`"),
    "source-entry-refused": (
        ExitCode.USAGE,
        "commit the content itself, or leave the entry out with `include`",
    ),
    "source-git-failed": (ExitCode.INTERNAL, "run `git fsck` in the named folder"),
    "source-not-git": (ExitCode.USAGE, "name a folder of a git work tree that has a commit"),
    "tool-member-missing": (ExitCode.USAGE, "correct `member` in release.toml"),
    "tool-path-missing": (ExitCode.USAGE, "correct `path` in release.toml"),
    "url-digest-mismatch": (
        ExitCode.INTEGRITY,
        "find out why the file changed before you write its new digest into release.toml",
    ),
    "url-fetch-failed": (ExitCode.TRANSFER_INCOMPLETE, "check the address and run it again"),
    "wheel-conflict": (ExitCode.USAGE, "remove one of the two wheels from the requirements"),
    "wheel-dependency-missing": (ExitCode.USAGE, "lock all dependencies, such as with uv or pip"),
    "wheel-digest-mismatch": (
        ExitCode.INTEGRITY,
        "remove the file from the cache; if it repeats, don't trust the index",
    ),
    "wheel-fetch-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "check pip's own settings (`pip config list`) and run it again",
    ),
    "wheel-is-sdist": (
        ExitCode.USAGE,
        "build a wheel of it for the platform, put it where your index is, and lock its digest",
    ),
    "wheel-layout-invalid": (ExitCode.INTEGRITY, "use another build of the wheel"),
    "wheel-metadata-invalid": (ExitCode.INTEGRITY, "use another build of the wheel"),
    "wheel-name-invalid": (ExitCode.INTEGRITY, "lock again; the file is not what was asked for"),
    "wheel-not-found": (
        ExitCode.USAGE,
        "lock the digest of a wheel that exists, or configure the index that has it",
    ),
    "wheel-python-unfit": (ExitCode.USAGE, "lock a version that supports the platform's Python"),
    "wheel-record-mismatch": (ExitCode.INTEGRITY, "don't use the wheel: its content was changed"),
    "wheel-unfit": (
        ExitCode.INCOMPATIBLE,
        "lock a version with a wheel for this platform, or correct the platform in release.toml",
    ),
    "zip-refused": (ExitCode.INTEGRITY, "don't use the archive; get another build of it"),
    # --- what would not be on a host what it is here ---
    "capability-refused": (
        ExitCode.USAGE,
        "take the capabilities from the file and give them to the unit that runs it",
    ),
    "input-hollow": (
        ExitCode.USAGE,
        "ship a program that makes the file on the host, or leave the file out",
    ),
    # --- Nix ---
    "nar-malformed": (
        ExitCode.INTEGRITY,
        "don't use the archive; let Nix build or fetch the store path again",
    ),
    "narinfo-malformed": (
        ExitCode.INTEGRITY,
        "don't use the binary cache as it is; copy the closure into a new one with `nix copy`",
    ),
    "nix-cache-invalid": (
        ExitCode.USAGE,
        "write addresses of binary caches into CAPSULE_NIX_CACHES, separated by spaces",
    ),
    "nix-closure-open": (
        ExitCode.INTEGRITY,
        "copy the whole closure into the binary cache, not single paths of it; then lock again",
    ),
    "nix-component-invalid": (
        ExitCode.USAGE,
        "correct what the flake says of the component; docs/reference/nix.md has the interface",
    ),
    "nix-failed": (ExitCode.USAGE, "see what Nix says, correct the flake, and lock again"),
    "nix-flake-unpinned": (
        ExitCode.USAGE,
        "commit the flake, or name it by a reference that has a revision",
    ),
    "nix-link-outside": (
        ExitCode.USAGE,
        "patch the package so that its links stay in the store; a capsule carries nothing else",
    ),
    "nix-missing": (
        ExitCode.USAGE,
        "install Nix 2.8 or newer and lock, or take release.lock from a machine that has it",
    ),
    "nix-nar-mismatch": (
        ExitCode.INTEGRITY,
        "don't use the binary cache; if another content is meant, lock again where Nix is",
    ),
    "nix-path-unavailable": (
        ExitCode.TRANSFER_INCOMPLETE,
        "name a binary cache that has the path in CAPSULE_NIX_CACHES, or lock where Nix is",
    ),
    "nix-signature-invalid": (
        ExitCode.INTEGRITY,
        "don't use the binary cache; ask who signs it what has changed",
    ),
    "nix-signature-missing": (
        ExitCode.INTEGRITY,
        "sign the closure with a key that release.toml pins, or pin the key that signed it",
    ),
    # --- services, images, the capsule itself ---
    "budget-exceeded": (
        ExitCode.BUDGET_REFUSED,
        "shorten the units' time-outs or soak, or raise budgets.d1_s in release.toml",
    ),
    "case-collision": (
        ExitCode.INTEGRITY,
        'rename one of the two, or set the role\'s case_collisions to "warn"',
    ),
    "counter-not-higher": (
        ExitCode.DENIED,
        "raise release_counter in release.toml, or build into another folder",
    ),
    "input-changed": (ExitCode.INTEGRITY, "let nothing write to the inputs, and build again"),
    "input-missing": (ExitCode.USAGE, "commit the file, or correct the path in release.toml"),
    "key-exists": (ExitCode.USAGE, "choose another file name; nothing was overwritten"),
    "key-exposed": (ExitCode.INTEGRITY, "replace the key; then `chmod 600` the new one"),
    "key-missing": (ExitCode.USAGE, "give the path of a key file that this user can read"),
    "managed-file-not-allowed": (ExitCode.USAGE, "choose another target in release.toml"),
    "not-reproducible": (
        ExitCode.INTEGRITY,
        "compare the two with `capsule diff` and remove what depends on time or place",
    ),
    "object-mismatch": (ExitCode.INTEGRITY, "get the capsule again"),
    "output-differs": (ExitCode.INTEGRITY, "move the named folder away, then build again"),
    "unit-invalid": (ExitCode.USAGE, "correct the named line of the unit file"),
    "unit-not-allowed": (
        ExitCode.PREFLIGHT_REFUSED,
        "ship what the unit needs in the capsule, or declare the step in guarded_steps",
    ),
    "disk-full": (
        ExitCode.SPACE,
        "free space or inodes, then run again: what has arrived is kept; `capsule gc` helps",
    ),
    "file-exists": (ExitCode.USAGE, "choose another folder, or move the named files away"),
    "file-failed": (ExitCode.USAGE, "correct the named path or its permissions, then run again"),
    "template-invalid": (
        ExitCode.USAGE,
        "correct the placeholder; docs/reference/template.md lists those that exist",
    ),
    "template-value-invalid": (
        ExitCode.ROUTE_MISMATCH,
        "correct the node's value in fleet.toml, then freeze again",
    ),
    "template-value-missing": (
        ExitCode.ROUTE_MISMATCH,
        "give the node this value in fleet.toml (vars), then freeze again",
    ),
    "secret-found": (
        ExitCode.DENIED,
        "remove it and make it void, or name it in secret-waivers.toml with a reason and a day",
    ),
    "waivers-invalid": (ExitCode.USAGE, "correct secret-waivers.toml as the message says"),
    "image-digest-mismatch": (
        ExitCode.INTEGRITY,
        "get the image again; if another one is meant, write its digest and lock again",
    ),
    "image-fetch-failed": (
        ExitCode.TRANSFER_INCOMPLETE,
        "see what skopeo says, log in with it if need be, and lock again",
    ),
    "image-malformed": (
        ExitCode.INTEGRITY,
        "make the image again with a tool that writes OCI layouts",
    ),
    "image-platform-missing": (
        ExitCode.USAGE,
        "name an image that is there for this platform, or limit the component's platforms",
    ),
}
