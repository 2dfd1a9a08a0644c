"""A client of Pomona in Python: TLS, a token, retries, a deadline, cancellation and the reason of a failure.

POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN python example.py MODEL PROMPT
"""

import os
import sys

import pomona

MINUTE_S = 60.0


def main() -> None:
    """Call the server in four ways."""
    model, prompt = sys.argv[1:]
    address, ca, token = (os.environ[name] for name in ("POMONA_SERVER", "POMONA_CA", "POMONA_TOKEN"))
    # The retry policy of docs/service_config.json is built in.
    with pomona.connect(address, tls_ca=ca, token=token, timeout_s=MINUTE_S) as client:
        print("answer:", answer(client, model, prompt))
        print("cancelled:", cancelled(client, model, prompt))
        print("late:", answer(client, model, prompt, timeout_s=0.001))
        print("refused:", answer(client, "nothing", prompt))


def answer(client: pomona.Client, model: str, prompt: str, timeout_s: float = MINUTE_S) -> str:
    """Print the text as it comes; leaving the loop early, by an exception too, cancels the call."""
    reply = client.chat(model, prompt, temperature=0, max_tokens=12, timeout_s=timeout_s)
    try:
        for text in reply:
            print(text, end="", flush=True)
    except pomona.PomonaError as failure:
        return outcome(failure)
    tokens = reply.written.usage.completion_tokens if reply.written.usage else 0
    print(f"\n{tokens} tokens")
    return "OK"


def cancelled(client: pomona.Client, model: str, prompt: str) -> str:
    """End a call once it has begun; the server then computes no further."""
    reply = client.chat(model, prompt, temperature=0, max_tokens=12)
    try:
        for _ in reply.events():
            reply.cancel()
    except pomona.PomonaError as failure:
        return outcome(failure)
    return "OK"


def outcome(failure: pomona.PomonaError) -> str:
    """Tell how a call ended: the status, and the reason and the delay that Pomona sends with it."""
    told = failure.code.name
    if failure.reason:
        told += f" {failure.reason} model={failure.metadata.get('model')}"
    if failure.retry_delay_s is not None:
        told += f" retry in {failure.retry_delay_s:g}s"
    return told


if __name__ == "__main__":
    main()
