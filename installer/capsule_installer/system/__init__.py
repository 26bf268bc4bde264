"""This machine, as effects that are handed in: clock, disk, processes, accounts."""
