"""Container engines of a host: images of a release loaded, checked, pinned and found again."""
