"""The controller's database: append-only events, permits, holds, leases and nodes."""
