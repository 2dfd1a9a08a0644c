"""What the command line sets in its environment for the libraries that it loads."""

import os


def quiet_grpc() -> None:
    """Have gRPC write nothing below an error on standard error, unless GRPC_VERBOSITY is set.

    It says that a server went away, for one, before the verb does. It reads the variable when it is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
