"""The network guard: no declared step may use a network, and whatever tries is known by name."""

__all__: list[str] = []
