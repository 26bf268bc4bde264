"""The demo: three releases, three hosts that are folders, one failure that stays where it is."""
