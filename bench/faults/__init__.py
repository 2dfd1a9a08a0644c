"""What the long runs under faults share."""
