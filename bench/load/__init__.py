"""What puts load on servers and measures what their clients get: prompts, plans, servers, the client's process."""
