"""The rollout's pure core: machines, permits, budgets, plans, and the driver that uses them.

Nothing here reads a clock, a disk or a socket, or draws a random number: the ledger, the hosts and
the clock are Protocols of `capsule.lane.ports`, so that the simulator runs these very modules.
"""

__all__: list[str] = []
