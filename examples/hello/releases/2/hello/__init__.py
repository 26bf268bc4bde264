"""A small web service that says which release answers."""

RELEASE = "2.0.0"
