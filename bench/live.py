"""Captions of somebody who is speaking: how soon they come, whether they stay, and what they cost.

Clips of speech with pauses between them, or a file of your own, are played to Pomona with Whisper base as a microphone
would send them, through gateway and worker, one stream alone and several at once. Prints and writes for each number of
streams:

* how long after the end of the speech the final segment came, beyond the silence that was asked for. The end is where
  the sound stops, not where the server says it does;
* interim segments, and the share of text called stable that was taken back later, which must be 0;
* seconds of processor time of the worker for each second of audio, and the lag that it told.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import av
import grpc
import grpc.aio
import numpy as np
from google.protobuf.duration_pb2 import Duration
from numpy.typing import NDArray
from pomona.v1 import model_pb2, model_pb2_grpc, transcription_pb2_grpc
from pomona.v1 import transcription_pb2 as pb

from bench import report
from tests.support.served import served
from tests.support.whisper_base import whisper_base_path

MODEL = "whisper"
RATE_HZ = 16_000
CHUNK_S = 0.1
LOAD_LIMIT_S = 120.0
CLIPS = report.ROOT / "tests" / "models" / "whisper" / "recordings"
QUIET = 0.02  # of the loudest: what is below is no speech
FRAME = RATE_HZ // 50
MATCH_S = 0.6  # a segment that ends further from any end of sound than this is measured by its own end

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """What is played: samples, and where sound stops for a while, in seconds."""

    samples: Samples
    ends_s: Sequence[float]

    @property
    def duration_s(self) -> float:
        """Of all of it."""
        return len(self.samples) / RATE_HZ


@dataclass
class Talk:
    """One stream: when it began, and its events with the seconds since then."""

    began: float
    events: list[tuple[float, pb.TranscriptionEvent]] = field(default_factory=list[tuple[float, pb.TranscriptionEvent]])

    def segments(self, *, final: bool) -> list[tuple[float, pb.Segment]]:
        """Return segments of one kind."""
        found = [(at, event.segment) for at, event in self.events if event.HasField("segment")]
        return [(at, segment) for at, segment in found if segment.final == final]


def main() -> None:
    """Measure, print, and write `bench/results/live.json`."""
    arguments = parse(sys.argv[1:])
    sound = load(arguments)
    print(report.heading(f"Live captions, Whisper base: {sound.duration_s:.1f} s of audio in real time"))
    model = arguments.model or whisper_base_path()
    results: list[dict[str, Any]] = []
    with served("--model", f"{MODEL}={model}", "--log-level", "warning") as server:
        with grpc.insecure_channel(server.address) as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            stub.LoadModel(model_pb2.LoadModelRequest(model=MODEL), timeout=LOAD_LIMIT_S)
        for num_streams in arguments.streams:
            before_s = _worker_s(server.process.pid)
            talks = asyncio.run(play(server.address, sound, num_streams, arguments))
            compute_s = _worker_s(server.process.pid) - before_s
            results.append(figures(sound, talks, compute_s, arguments.silence))
            show(results[-1])
            if arguments.text:
                print("".join(segment.stable_text for _, segment in talks[0].segments(final=True)))
        server.stop()
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    options |= {"loop": [each.name for each in arguments.loop], "model": Path(model).name}
    if arguments.dry_run:
        print("nothing is written")
    else:
        path = report.write("live", {"benchmark": "live", "options": options, "results": results})
        print("written:", path.relative_to(report.ROOT))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help="play this instead of clips, from its start")
    parser.add_argument("--loop", type=Path, nargs="+", default=sorted(CLIPS.glob("*.wav")), help="clips")
    parser.add_argument("--pause", type=float, default=1.2, help="seconds of silence behind each clip")
    parser.add_argument("--seconds", type=float, default=60.0, help="of audio at least, or at most of a file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4], help="at once")
    parser.add_argument("--silence", type=float, default=0.5, help="seconds that end an utterance")
    parser.add_argument("--interval", type=float, default=0.3, help="seconds between two interims at least")
    parser.add_argument("--language", default="en", help="of the speech; an empty one is to be found")
    parser.add_argument("--words", action="store_true", help="place the words of finals")
    parser.add_argument("--text", action="store_true", help="print what was heard")
    parser.add_argument("--model", type=Path, help="a folder; by default Whisper base")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    return parser.parse_args(arguments)


def load(arguments: argparse.Namespace) -> Sound:
    """Return what is to be played."""
    if arguments.file is not None:
        samples = _decoded(arguments.file)[: round(arguments.seconds * RATE_HZ)]
    else:
        pause = np.zeros(round(arguments.pause * RATE_HZ), np.float32)
        clips = [_decoded(path) for path in arguments.loop]
        parts = [pause]
        while sum(map(len, parts)) < arguments.seconds * RATE_HZ:
            parts += [clips[len(parts) // 2 % len(clips)], pause]
        samples = np.concatenate(parts)
    return Sound(samples, _sound_ends(samples, arguments.silence))


async def play(address: str, sound: Sound, num_streams: int, arguments: argparse.Namespace) -> list[Talk]:
    """Play to so many streams at once, each a little behind the one before."""

    async def one(number: int, channel: grpc.aio.Channel) -> Talk:
        await asyncio.sleep(number * 0.73)
        return await _talk(channel, sound, arguments)

    async with grpc.aio.insecure_channel(address) as channel:
        return list(await asyncio.gather(*(one(number, channel) for number in range(num_streams))))


async def _talk(channel: grpc.aio.Channel, sound: Sound, arguments: argparse.Namespace) -> Talk:
    stub: Any = transcription_pb2_grpc.TranscriptionServiceStub(channel)
    is_ready = asyncio.Event()
    talk = Talk(0.0)

    async def requests() -> AsyncIterator[pb.StreamTranscribeRequest]:
        yield pb.StreamTranscribeRequest(model=MODEL, config=_config(arguments))
        await is_ready.wait()
        talk.began = time.monotonic()
        pcm = (np.clip(sound.samples, -1, 1) * 32767).astype("<i2")
        step = round(CHUNK_S * RATE_HZ)
        for start in range(0, len(pcm), step):
            # A microphone has a chunk once its last sample is heard.
            due = talk.began + min(start + step, len(pcm)) / RATE_HZ
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield pb.StreamTranscribeRequest(audio=pcm[start : start + step].tobytes())

    async for response in stub.StreamTranscribe(requests()):
        if response.event.HasField("ready"):
            is_ready.set()
        talk.events.append((time.monotonic() - talk.began, response.event))
    return talk


def figures(sound: Sound, talks: Sequence[Talk], compute_s: float, silence_s: float) -> dict[str, Any]:
    """Reduce what streams were told."""
    finals = [each for talk in talks for each in talk.segments(final=True)]
    delays = [
        at - _end_of(sound, segment) - silence_s
        for at, segment in finals
        if segment.end_reason == pb.SEGMENT_END_SILENCE
    ]
    interims = [talk.segments(final=False) for talk in talks]
    lags = [_seconds(e.progress.lag) for talk in talks for _, e in talk.events if e.HasField("progress")]
    stable, taken_back = (sum(each) for each in zip(*(_stability(talk) for talk in talks), strict=True))
    audio_s = sound.duration_s * len(talks)
    return {
        "streams": len(talks),
        "audio_s": round(audio_s, 2),
        "finals": len(finals),
        "final_delay_beyond_silence_s": _quantiles(delays),
        "interims": sum(map(len, interims)),
        "interims_per_stream_second": round(sum(map(len, interims)) / audio_s, 3),
        "stable_characters": stable,
        "share_taken_back": taken_back / max(1, stable),
        "lag_s": _quantiles(lags),
        "compute_s_per_audio_s": round(compute_s / audio_s, 3),
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures of one number of streams."""
    delay, lag = result["final_delay_beyond_silence_s"], result["lag_s"]
    print(
        f"{result['streams']} streams: {result['finals']} finals, beyond the silence p50 {delay['p50']:.2f},"
        f" p95 {delay['p95']:.2f}, max {delay['max']:.2f} s; {result['interims']} interims"
        f" ({result['interims_per_stream_second']:.2f} a second); taken back {result['share_taken_back']:.2%} of"
        f" {result['stable_characters']} characters; lag p50 {lag['p50']:.2f}, max {lag['max']:.2f} s;"
        f" {result['compute_s_per_audio_s']:.2f} s of the processor for a second",
        flush=True,
    )


def _config(arguments: argparse.Namespace) -> pb.StreamTranscriptionConfig:
    pcm = pb.RawPcm(encoding=pb.RawPcm.ENCODING_S16_LE, sample_rate_hz=RATE_HZ, channel_count=1)
    return pb.StreamTranscriptionConfig(
        transcription=pb.TranscriptionConfig(
            format=pb.AudioFormat(pcm=pcm),
            languages=[arguments.language] if arguments.language else [],
            word_timestamps=arguments.words,
        ),
        mode=pb.StreamTranscriptionConfig.MODE_LIVE,
        interim_results=True,
        voice_activity_events=True,
        utterance_end_silence=_duration(arguments.silence),
        interim_interval=_duration(arguments.interval),
    )


def _decoded(path: Path) -> Samples:
    with av.open(str(path)) as container:
        resampler = av.AudioResampler("flt", "mono", RATE_HZ)
        frames = [piece for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def _sound_ends(samples: Samples, silence_s: float) -> list[float]:
    """Return where sound stops for as long as ends an utterance, in seconds."""
    num_frames = len(samples) // FRAME
    loud = np.abs(samples[: num_frames * FRAME]).reshape(num_frames, FRAME).max(axis=1)
    places = np.flatnonzero(loud > QUIET * loud.max())
    gaps = np.diff(places, append=num_frames + RATE_HZ) * FRAME / RATE_HZ
    return [(place + 1) * FRAME / RATE_HZ for place in places[gaps > silence_s].tolist()]


def _end_of(sound: Sound, segment: pb.Segment) -> float:
    told_s = _seconds(segment.end_offset)
    nearest = min(sound.ends_s, key=lambda end: abs(end - told_s), default=told_s)
    return nearest if abs(nearest - told_s) <= MATCH_S else told_s


def _stability(talk: Talk) -> tuple[int, int]:
    """Return how many characters were called stable, and how many were others in the end, counted at each event."""
    finals = {segment.segment_id: segment.stable_text for _, segment in talk.segments(final=True)}
    called: dict[int, str] = {}
    taken_back = 0
    for _, segment in talk.segments(final=False):
        text = finals.get(segment.segment_id, "")
        called[segment.segment_id] = max(called.get(segment.segment_id, ""), segment.stable_text, key=len)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(segment.stable_text, text, strict=False)))
        taken_back += len(segment.stable_text) - kept
    return sum(map(len, called.values())), taken_back


def _quantiles(samples: Sequence[float]) -> dict[str, float | int]:
    """Return count, p50, p95 and max."""
    if not samples:
        return {"count": 0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    p50, p95 = (float(np.quantile(samples, share)) for share in (0.5, 0.95))
    return {"count": len(samples), "p50": round(p50, 3), "p95": round(p95, 3), "max": round(max(samples), 3)}


def _worker_s(gateway: int) -> float:
    """Return the processor time of a gateway's children, in seconds; 0 where the system does not say it."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == gateway:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


if __name__ == "__main__":
    main()
