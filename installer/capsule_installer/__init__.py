"""The host program: verifies, realises and installs a release offline, and restores by itself."""
