"""A small web service that says which release answers."""

RELEASE = "1.0.0"
