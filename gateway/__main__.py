"""The `pomona` command: serves models, and talks to a server that does."""

from gateway.cli.app import app
from gateway.cli.settings import quiet_grpc


def main() -> None:
    """Run the command line on the arguments of this process."""
    quiet_grpc()
    app(prog_name="pomona")


if __name__ == "__main__":
    main()
