"""The controller: builds, stages and rolls out releases in parallel lanes, and serves the hub."""
