"""Where routed experts lie."""
