"""What a machine has of Nix: the program perhaps, and the binary caches that its user names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capsule.builder.nix.caches import BinaryCache, open_caches
from capsule.builder.nix.http import http_get
from capsule.builder.nix.program import ClosureBuilder, Nix

__all__ = ["NixAccess", "nix_access"]

_CACHES: Final = "CAPSULE_NIX_CACHES"


@dataclass(frozen=True, slots=True, kw_only=True)
class NixAccess:
    """A way to build closures, and where built ones are. Caches are asked in their order."""

    builder: ClosureBuilder
    caches: tuple[BinaryCache, ...]


def nix_access(environment: Mapping[str, str]) -> NixAccess:
    """Return what the user of this environment has.

    Raises:
        Refused: `nix-cache-invalid`.
    """
    return NixAccess(
        builder=Nix(environment), caches=open_caches(environment.get(_CACHES, ""), http_get)
    )
