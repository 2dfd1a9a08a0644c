"""What a gateway tells of itself: its log, and what observes it."""

from __future__ import annotations

from gateway.live_settings import LiveSettings
from gateway.log_levels import LogLevels
from gateway.log_output import LogOutput, standard_error
from gateway.logs import LogRing, make_log
from gateway.observation import Observation
from gateway.settings import Settings


class Journal:
    """The log of one gateway, its levels and its observers, and the settings as they were read last.

    Attributes:
        ring: past lines.
        output: writes lines.
        levels: the least that is logged.
        log: takes lines.
        live: the settings.
        observation: metrics and traces.
    """

    def __init__(self, settings: Settings) -> None:
        """Make them; nothing runs or listens yet.

        Raises:
            SettingsError: traces are wanted and what writes them is not installed.
        """
        self.ring = LogRing(settings.logs.kept_lines)
        self.output = LogOutput(standard_error(), settings.logs.format)
        self.levels = LogLevels(settings.logs.level)
        self.log = make_log(self.ring, self.levels, settings.logs.format, self.output)
        self.live = LiveSettings(settings, self.log)
        self.observation = Observation(settings, self.log)
