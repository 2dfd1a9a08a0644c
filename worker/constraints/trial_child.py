"""The child that tries a client's grammar before the worker compiles it.

A grammar is a program for a compiler: it can take seconds, all memory, or more stack than there is, and the last ends a
process. So it is tried here, under limits that the kernel holds, with a vocabulary of single bytes, as what a grammar
costs does not hang on the vocabulary. What a client wrote is also read and checked here, away from the worker's event
loop.
"""

from worker import lifeline

# First, so that a worker that is gone takes an endless trial with it.
if __name__ == "__main__":
    lifeline.arm()

import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from worker.confinement import cpu_limit, ignore_signals, limit_memory, receive, send
from worker.constraints.complaints import refusal_of
from worker.constraints.limits import TRIAL_CPU_S, TRIAL_MEMORY_BYTES, TRIAL_STACK_BYTES, TRIAL_TOKENS
from worker.constraints.matching import Matcher, MatcherFailed, Vocabulary, check, make_matcher, make_vocabulary
from worker.constraints.refusal import Reason, Refused, invalid
from worker.constraints.source import Source, source_of

END_ID = NUM_BYTES = 256


def main() -> int:
    """Learn the special tokens from the first message, then try grammars until the worker closes the socket."""
    ignore_signals()
    threading.stack_size(TRIAL_STACK_BYTES)
    with socket.socket(fileno=0) as worker, ThreadPoolExecutor(1) as executor:
        hello = receive(worker)
        if hello is None:
            return 0
        special_tokens: dict[str, int] = hello["special_tokens"]
        vocabulary = executor.submit(byte_vocabulary, tuple(special_tokens)).result()
        limit_memory(TRIAL_MEMORY_BYTES)
        send(worker, {})
        while (request := receive(worker)) is not None:
            with cpu_limit(TRIAL_CPU_S):
                answered = executor.submit(answer, request, special_tokens, vocabulary).result()
            send(worker, answered)
    return 0


def byte_vocabulary(special_tokens: Sequence[str]) -> Vocabulary:
    """Return a vocabulary of the 256 bytes, these special tokens, and an end."""
    special = [b"<end>", *(text.encode() for text in special_tokens)]
    tokens = [bytes([byte]) for byte in range(NUM_BYTES)] + special
    ids = range(NUM_BYTES, len(tokens))
    return make_vocabulary(tokens, ids, [END_ID], lambda text: list(text.encode()))


def answer(request: dict[str, Any], special_tokens: Mapping[str, int], vocabulary: Vocabulary) -> dict[str, Any]:
    """Try one grammar; a refusal is an answer too."""
    began = time.process_time()
    try:
        source = try_out(request, special_tokens, vocabulary)
    except Refused as refused:
        return {"refused": refused.reason.value, "problem": refused.problem}
    except MemoryError:
        return {"refused": Reason.TOO_COMPLEX.value, "problem": "it takes too much memory"}
    cost_s = time.process_time() - began
    return {"text": source.text, "special_tokens": sorted(source.special_tokens), "cost_s": cost_s}


def try_out(request: dict[str, Any], special_tokens: Mapping[str, int], vocabulary: Vocabulary) -> Source:
    """Read, check and compile one grammar, and take the first tokens that it allows.

    Raises:
        Refused: it is not one that can be taken.
    """
    source = source_of(request["kind"], request["text"], special_tokens)
    try:
        matcher = make_matcher(vocabulary, source.text, request["kind"])
        for index in range(TRIAL_TOKENS):
            ids = allowed(matcher)
            if not ids and index == 0:
                raise invalid("only the empty text fits it")
            if not ids or matcher.is_stopped():
                break
            matcher.consume_token(ids[0])
            check(matcher)
    except MatcherFailed as error:
        raise refusal_of(str(error), request["kind"]) from None
    return source


def allowed(matcher: Matcher) -> list[int]:
    """Return the ids of the tokens that may follow, an end left out.

    Raises:
        MatcherFailed: there are none, or it takes too much work.
    """
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    check(matcher)
    return [token_id for token_id in range(mask.bit_length()) if mask >> token_id & 1 and token_id != END_ID]


if __name__ == "__main__":
    sys.exit(main())
