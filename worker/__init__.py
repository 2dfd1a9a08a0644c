"""The process that holds one model and serves it on its own socket."""
