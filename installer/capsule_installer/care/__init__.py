"""Look after a host: say what it is, verify it, repair it, remove what nothing needs."""
