"""Options of `transcribe`: what they send, and what is wrong usage."""

from pathlib import Path

import pytest
from pomona.v1 import transcription_pb2 as t

from tests.support.scripted_server import ScriptedServer

from .conftest import Run
from .listener import listen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recording in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(b"RIFF")
    return tmp_path


def test_nothing_is_asked_for_that_was_not_said(folder: Path, server: ScriptedServer, run: Run) -> None:
    listener = listen(server)
    run("transcribe", "talk.wav")
    expected = t.StreamTranscriptionConfig(mode=t.StreamTranscriptionConfig.MODE_FILE)
    expected.transcription.SetInParent()
    assert listener.starts[0].config == expected


def test_every_option_is_sent(folder: Path, server: ScriptedServer, run: Run) -> None:
    listener = listen(server)
    spoken = ("--language", "en, de", "--translate", "--words", "--prompt", "P", "--phrase", "x", "--phrase", "y")
    decoding = ("--beam", "5", "--patience", "2", "--length-penalty", "0.5", "--best-of", "3")
    doubt = ("--compression-ratio-threshold", "2", "--logprob-threshold", "-0.5", "--no-speech-threshold", "0.25")
    other = ("--no-condition", "--no-voice-filter", "--clips", "0-1.5,1:00-1:02:03,1:03:00-", "--alternatives", "2")
    audio = ("--pcm", "f32le:48000:2", "--channels", "separate")
    result = run("transcribe", "talk.wav", *spoken, *decoding, *doubt, *other, *audio)
    assert result.exit_code == 0, result.stderr
    expected = t.TranscriptionConfig(
        languages=["en", "de"],
        task=t.TranscriptionConfig.TASK_TRANSLATE_TO_ENGLISH,
        word_timestamps=True,
        initial_prompt="P",
        phrases=["x", "y"],
        beam_size=5,
        best_of=3,
        patience=2,
        length_penalty=0.5,
        condition_on_previous_text=False,
        compression_ratio_threshold=2,
        avg_logprob_threshold=-0.5,
        no_speech_threshold=0.25,
        voice_activity_filter=False,
        max_alternatives=2,
    )
    pcm = t.RawPcm(encoding=t.RawPcm.ENCODING_F32_LE, sample_rate_hz=48000, channel_count=2)
    pcm.channel_mode = t.RawPcm.CHANNEL_MODE_SEPARATE
    expected.format.pcm.CopyFrom(pcm)
    for start_s, end_s in ((0, 1.5), (60, 3723), (3780, None)):
        clip = expected.clips.add()
        clip.start_offset.FromMilliseconds(start_s * 1000)
        if end_s is not None:
            clip.end_offset.FromMilliseconds(round(end_s * 1000))
    assert listener.starts[0].config.transcription == expected
    run("transcribe", "talk.wav", "--temperature", "0")
    assert listener.starts[1].config.transcription == t.TranscriptionConfig(temperature=0)


def test_options_of_the_config_are_all_there() -> None:
    """A field that the contract gains must get an option, or a place in this list."""
    fields = {field.name for field in t.TranscriptionConfig.DESCRIPTOR.fields}
    assert fields == {
        *("format", "languages", "task", "word_timestamps", "initial_prompt", "phrases", "temperature", "beam_size"),
        *("best_of", "patience", "length_penalty", "condition_on_previous_text", "compression_ratio_threshold"),
        *("avg_logprob_threshold", "no_speech_threshold", "voice_activity_filter", "clips", "max_alternatives"),
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "strt"), "no format is named 'strt'; there are: txt, srt, vtt, json, tsv. Did you mean srt?"),
        (
            ("--pcm", "s16:16000:1"),
            "no encoding is named 's16'; there are: s16le, f32le, mulaw, alaw. Did you mean s16le?",
        ),
        (("--pcm", "s16le:fast:1"), "'s16le:fast:1' is not ENCODING:RATE:CHANNELS, such as s16le:16000:1"),
        (("--pcm", "s16le:1:1"), "--pcm: RATE: not within 8000 to 48000"),
        (("--pcm", "s16le:16000:9"), "--pcm: CHANNELS: not within 1 to 8"),
        (("--pcm", f"s16le:{'9' * 5000}"), "is not ENCODING:RATE:CHANNELS"),
        (("--pcm", "s16le"), "is not ENCODING:RATE:CHANNELS"),
        (("--clips", "5"), "'5' is not A-B, such as 0-5.5 or 1:05-1:30, or 60- to the end"),
        (("--clips", "0-5,7-6"), "'7-6' ends before it begins"),
        (("--clips", "0-5,3-8"), "'3-8' begins before the one before it ends"),
        (("--clips", "5-,8-9"), "'8-9' begins before the one before it ends"),
        (("--clips", "0-99999999999999999"), "is no number of seconds"),
        (("--channels", "separate"), "--channels needs --pcm"),
        (("--language", "en,,de"), "'en,,de' is no list of languages"),
        (("--silence", "1"), "--silence needs --live"),
        (("--live", "--interim-interval", "1"), "--interim-interval needs a terminal, or --format json"),
        (("--live", "--clips", "0-1"), "--clips: not with --live"),
        (("--live", "--no-voice-filter"), "--no-voice-filter: not with --live"),
        (("--live", "--silence", "-1"), "--silence: not within 0.1 to 10"),
        (("--idle-timeout", "0"), "--idle-timeout: not within 0.1 to 3600"),
        (("--idle-timeout", "nan"), "--idle-timeout: not within 0.1 to 3600"),
        (("--beam", "-1"), "--beam: not within 1 to 16"),
        (("--beam", "0"), "--beam: not within 1 to 16"),
        (("--temperature", "5"), "--temperature: not within 0 to 2"),
        (("--temperature", "nan"), "--temperature: not within 0 to 2"),
        (("--patience", "0"), "--patience: not above 0, at most 8"),
        (("--patience", "2", "--beam", "1"), "--patience: only with --beam above 1"),
        (("--alternatives", "2", "--live"), "--alternatives: only with --beam or --best-of above 1"),
        (("--alternatives", "11"), "--alternatives: not within 0 to 10"),
        (("--phrase", ""), "--phrase: an empty one"),
        (("--live", "talk.wav"), "--live takes one FILE"),
        (("talk.wav", "--format", "srt"), "several transcripts in srt make no file: add --output FOLDER/"),
        (("talk.wav", "-o", "one.srt"), "one.srt is one file, and 2 transcripts need a folder, such as one.srt/"),
        (("-o", "talk.wav/"), "talk.wav is no folder"),
        (("-o", "one.doc"), "--output: no format is named 'doc'; there are: txt, srt, vtt, json, tsv"),
        (("-o", "nowhere/one.srt"), "--output: nowhere is no folder"),
        (("-o", "nowhere/out/"), "--output: nowhere is no folder"),
        (("sub/talk.wav", "-o", "out/"), "the transcripts of talk.wav and sub/talk.wav would both be out/talk.txt"),
        (("-o", "talk.wav", "--format", "txt"), "talk.wav is a recording, and would be overwritten"),
        (("--server", "nowhere"), "'nowhere' is no address"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_sent(
    folder: Path, server: ScriptedServer, run: Run, arguments: tuple[str, ...], words: str
) -> None:
    result = run("transcribe", "talk.wav", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert server.calls == []
    assert [each.name for each in folder.iterdir()] == ["talk.wav"]


def test_names_of_other_tools_lead_to_this_one(run: Run) -> None:
    assert "Did you mean 'pomona transcribe'?" in run("whisper", "talk.wav").stderr
