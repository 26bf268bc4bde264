"""The rollout's shell: threads, transports, hooks and screens around the pure core in `lane`."""
