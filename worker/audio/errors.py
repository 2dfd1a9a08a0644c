"""What can be wrong with audio.

    AudioError
    ├── AudioUnreadable
    └── AudioTooLong

A message holds no text of the decoding library: it may reach a client.
"""


class AudioError(Exception):
    """Raised when audio cannot be transcribed."""


class AudioUnreadable(AudioError):
    """Raised when bytes are no audio of a kind that is read, or break off before any of it."""


class AudioTooLong(AudioError):
    """Raised when there is more audio than may be decoded.

    Attributes:
        max_s: seconds that may be.
    """

    def __init__(self, max_s: float) -> None:
        """Keep the facts."""
        self.max_s = max_s
        super().__init__(f"there are more than {max_s:g} seconds of audio")
