"""What is wrong with a use of any workload."""


class NotLoadedError(RuntimeError):
    """Raised when a workload is used before its load."""
