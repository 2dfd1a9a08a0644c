"""What can be wrong with audio.

    AudioError
    ├── AudioUnreadable
    ├── AudioTooLong
    ├── AudioTooLarge
    └── AudioNotStored

A message holds no text of the decoding library and no path: it may reach a client.
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


class AudioTooLarge(AudioError):
    """Raised when audio is more bytes than may come, or more than may be decoded.

    Attributes:
        max_bytes: how many may be.
        is_decoded: whether bytes behind the decoder are meant, not those that came.
    """

    def __init__(self, max_bytes: int, *, is_decoded: bool = False) -> None:
        """Keep the facts."""
        self.max_bytes = max_bytes
        self.is_decoded = is_decoded
        verb = "decodes to" if is_decoded else "has"
        super().__init__(f"the audio {verb} more than {max_bytes} bytes")


class AudioNotStored(AudioError):
    """Raised when the machine's temporary folder takes no more: the server's fault, not the audio's."""

    def __init__(self) -> None:
        """Say what is missing."""
        super().__init__("the server has no room to store the audio")
