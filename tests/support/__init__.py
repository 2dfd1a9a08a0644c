"""What several tests share: real small processes, tiny models, waiting with a limit."""
