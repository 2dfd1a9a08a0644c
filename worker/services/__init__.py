"""The services on the worker's socket: messages to plain types and back, one file each."""
