"""Trust as a controller keeps it: policies revised, carried on a medium, and updated."""

__all__: list[str] = []
