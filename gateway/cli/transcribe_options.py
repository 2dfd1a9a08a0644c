"""Options of a transcription, and what they set in its config."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from pomona.v1 import transcription_pb2

from gateway.cli.failures import UsageError
from gateway.cli.flags import FLAGS
from gateway.cli.raw_pcm import EXAMPLE, PcmFormat, parse_pcm
from gateway.cli.spans import duration, parse_clips
from gateway.cli.transcription_bounds import within

_SPOKEN = "What is said"
_DECODING = "Decoding (unset: the server's own defaults)"
_DOUBT = "Doubt (unset: the server's own defaults)"
_AUDIO = "The audio"
_LIVE = "Live (with --live)"
_SEARCH = (
    "temperature",
    "beam_size",
    "best_of",
    "patience",
    "length_penalty",
    "compression_ratio_threshold",
    "avg_logprob_threshold",
    "no_speech_threshold",
)


class Channels(StrEnum):
    """What becomes of several channels."""

    MIX = "mix"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True)
class SpokenOptions:
    """What is known of what is said, and what is wanted of it."""

    language: Annotated[
        str | None,
        typer.Option(
            metavar="L[,L...]",
            help="The language, such as en; several: one of these. Unset: found from the audio.",
            rich_help_panel=_SPOKEN,
        ),
    ] = None
    translate: Annotated[bool, typer.Option("--translate", help="Write it in English.", rich_help_panel=_SPOKEN)] = (
        False
    )
    words: Annotated[
        bool,
        typer.Option(
            "--words",
            help="Times of each word: in json; in vtt within each cue; in srt and tsv each word for itself.",
            rich_help_panel=_SPOKEN,
        ),
    ] = False
    alternatives: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="0 to 10: up to N other texts of each window, in json at its first segment.",
            rich_help_panel=_SPOKEN,
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What was said before, or how it is to be spelled.", rich_help_panel=_SPOKEN),
    ] = None
    phrase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A name or term to prefer, of at most 256 bytes; may repeat, 256 times at most.",
            rich_help_panel=_SPOKEN,
        ),
    ] = None

    def apply(self, config: transcription_pb2.TranscriptionConfig) -> None:
        """Write what is set into `config`.

        Raises:
            UsageError: a language has no name, or a number is out of range.
        """
        if self.language is not None:
            languages = [each.strip() for each in self.language.split(",")]
            if not all(languages):
                raise UsageError(f"--language: {self.language!r} is no list of languages, such as en,de")
            config.languages.extend(languages)
        if self.translate:
            config.task = transcription_pb2.TranscriptionConfig.TASK_TRANSLATE_TO_ENGLISH
        config.word_timestamps = self.words
        config.max_alternatives = within("max_alternatives", self.alternatives or 0)
        config.initial_prompt = self.prompt or ""
        config.phrases.extend(self.phrase or ())


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How text is chosen, and when it is not believed; what is unset is left to the server."""

    beam: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="1 to 16: follow the N likeliest texts; 1 is greedy. Unset: 2; with --live or --temperature 1.",
            rich_help_panel=_DECODING,
        ),
    ] = None
    patience: Annotated[
        float | None,
        typer.Option(
            help="Above 0, at most 8: with --beam, wait for this many times N finished texts.",
            rich_help_panel=_DECODING,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(help="0 to 1: with --beam or --best-of, prefers longer texts.", rich_help_panel=_DECODING),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 to 2; 0 always takes the likeliest. Unset: 0, and 0.2 to 1 where the text is not believed.",
            rich_help_panel=_DECODING,
        ),
    ] = None
    best_of: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="1 to 16: above temperature 0, draw N texts and take the best.", rich_help_panel=_DECODING
        ),
    ] = None
    condition: Annotated[
        bool | None,
        typer.Option(
            "--condition/--no-condition",
            help="Whether each window knows the text before it. Unset: yes; with --live no.",
            rich_help_panel=_DECODING,
        ),
    ] = None
    compression_ratio_threshold: Annotated[
        float | None,
        typer.Option(
            help="Above 0, at most 100: text that repeats itself more is tried again.", rich_help_panel=_DOUBT
        ),
    ] = None
    logprob_threshold: Annotated[
        float | None,
        typer.Option(help="-100 to 0: text less likely on average is tried again.", rich_help_panel=_DOUBT),
    ] = None
    no_speech_threshold: Annotated[
        float | None,
        typer.Option(help="0 to 1: from this probability on unlikely text is silence.", rich_help_panel=_DOUBT),
    ] = None

    def apply(self, config: transcription_pb2.TranscriptionConfig) -> None:
        """Write what is set into `config`.

        Raises:
            UsageError: a number is out of range.
        """
        for field in _SEARCH:
            name = FLAGS[field].removeprefix("--").replace("-", "_")
            if (value := getattr(self, name)) is not None:
                setattr(config, field, within(field, value))
        if self.condition is not None:
            config.condition_on_previous_text = self.condition


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """Which audio it is, and which of it is wanted."""

    clips: Annotated[
        str | None,
        typer.Option(
            metavar="A-B,...", help="Only these stretches: 0-5.5 or 1:05-1:30; 60- to the end.", rich_help_panel=_AUDIO
        ),
    ] = None
    pcm: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODING:RATE:CHANNELS",
            help=f"Raw samples, such as {EXAMPLE}: s16le, f32le, mulaw or alaw. Unset: found from the audio.",
            rich_help_panel=_AUDIO,
        ),
    ] = None
    voice_filter: Annotated[
        bool | None,
        typer.Option(
            "--voice-filter/--no-voice-filter",
            help="Whether to pass over silence; --live always does.",
            rich_help_panel=_DECODING,
        ),
    ] = None
    channels: Annotated[
        Channels | None,
        typer.Option(help="With --pcm: transcribe the mean of the channels, or each apart.", rich_help_panel=_AUDIO),
    ] = None

    def pcm_format(self) -> PcmFormat | None:
        """Return the format of raw samples; None for a container.

        Raises:
            UsageError: it is none.
        """
        return None if self.pcm is None else parse_pcm(self.pcm)

    def apply(self, config: transcription_pb2.TranscriptionConfig) -> None:
        """Write what is set into `config`.

        Raises:
            UsageError: a value is not one that can be.
        """
        pcm = self.pcm_format()
        if pcm is not None:
            config.format.pcm.CopyFrom(pcm.message())
        elif self.channels is not None:
            raise UsageError("--channels needs --pcm: the channels of a container are mixed")
        if self.channels is Channels.SEPARATE:
            config.format.pcm.channel_mode = transcription_pb2.RawPcm.CHANNEL_MODE_SEPARATE
        if self.clips is not None:
            config.clips.extend(parse_clips(self.clips))
        if self.voice_filter is not None:
            config.voice_activity_filter = self.voice_filter


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Whether audio is transcribed while it is spoken, and how soon."""

    live: Annotated[bool, typer.Option("--live", help="Transcribe while it is spoken.", rich_help_panel=_LIVE)] = False
    silence: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="0.1 to 10: silence that makes what was said final; unset 0.5.",
            rich_help_panel=_LIVE,
        ),
    ] = None
    interim_interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="0.1 to 60: what is not final comes no more often; unset 0.3.",
            rich_help_panel=_LIVE,
        ),
    ] = None
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="0.1 to 3600: end where a pipe gives nothing for so long; unset: the server's.",
            rich_help_panel=_AUDIO,
        ),
    ] = None

    def apply(self, config: transcription_pb2.StreamTranscriptionConfig, *, interim_results: bool) -> None:
        """Write what is set into `config`.

        Raises:
            UsageError: an option is set that would do nothing, or a time is none.
        """
        given = {"--silence": self.silence, "--interim-interval": self.interim_interval}
        for option, seconds in given.items():
            if seconds is not None and not self.live:
                raise UsageError(f"{option} needs --live")
        if self.interim_interval is not None and not interim_results:
            raise UsageError("--interim-interval needs a terminal, or --format json: a pipe gets final lines only")
        times = {
            "utterance_end_silence": self.silence,
            "interim_interval": self.interim_interval,
            "idle_timeout": self.idle_timeout,
        }
        for field, seconds in times.items():
            if seconds is not None:
                getattr(config, field).CopyFrom(duration(FLAGS[field], within(field, seconds)))
        modes = transcription_pb2.StreamTranscriptionConfig
        config.mode = modes.MODE_LIVE if self.live else modes.MODE_FILE
        config.interim_results = self.live and interim_results
