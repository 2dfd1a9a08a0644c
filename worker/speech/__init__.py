"""Speech to text: from a request's audio to its segments."""
