"""What one host is and remembers: where everything lies, who it is, and numbers that only grow."""
