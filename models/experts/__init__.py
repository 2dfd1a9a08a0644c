"""Where routed experts lie and how they come to the step that needs them."""
