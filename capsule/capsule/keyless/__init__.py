"""Keyless signatures: made where there is a network, proved where there is none."""

__all__: list[str] = []
