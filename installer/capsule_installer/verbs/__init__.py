"""The verbs that people reach by a command line."""
