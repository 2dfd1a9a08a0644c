"""What a checkpoint is and what its graph computes; no processes, no wire."""
