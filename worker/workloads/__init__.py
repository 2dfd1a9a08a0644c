"""What an engine runs: one file for each kind of work."""
