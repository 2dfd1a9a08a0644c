import pytest

from gateway.exit_words import signal_name, words_of
from gateway.model_status import Exit, ExitCause

DIED = ExitCause.DIED


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Exit(DIED, signal=9), "SIGKILL"),
        (Exit(DIED, signal=200), "200"),
        (Exit(DIED, code=70), "exit code 70"),
        (Exit(DIED), "not started"),
        (Exit(ExitCause.STALLED, signal=9, last_words=("no heartbeat",)), "stalled: no heartbeat"),
        (Exit(DIED, code=1, last_words=("first", "ValueError: 7 heads", " ")), "exit code 1: ValueError: 7 heads"),
        (Exit(DIED, code=1, last_words=('{"event": "gone", "level": "error"}',)), "exit code 1: gone"),
        (Exit(DIED, signal=9, last_words=('{"event": "worker moved", "level": "info"}',)), "SIGKILL"),
        (Exit(DIED, code=3, last_words=('{"message": "bad", "reason": "X"}',)), "exit code 3: bad"),
        (
            Exit(DIED, code=1, last_words=('{"event": "e", "trace": "a\\nKeyError: 2"}',)),
            "exit code 1: KeyError: 2",
        ),
    ],
)
def test_words_tell_how_and_the_last_line(ended: Exit, words: str) -> None:
    assert words_of(ended) == words


def test_words_hold_no_folder() -> None:
    line = "OSError: '/Users/ann/models/a.gguf' (~/x/y.py): ../up/config.json /"
    assert words_of(Exit(DIED, code=1, last_words=(line,))) == "exit code 1: OSError: 'a.gguf' (y.py): config.json "


def test_words_are_bounded() -> None:
    assert len(words_of(Exit(DIED, code=1, last_words=("x" * 4000,)))) == 300


def test_no_signal_has_no_name() -> None:
    assert (signal_name(None), signal_name(15)) == ("", "SIGTERM")
