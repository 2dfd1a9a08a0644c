"""A client of Pomona in Python, with modules made of the `.proto` files, that does what `example.py` does.

POMONA_SERVER=HOST:PORT POMONA_CA=FILE POMONA_TOKEN=TOKEN python generated.py MODEL PROMPT
"""

import os
import sys
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

sys.path.insert(0, str(Path(__file__).parent / "generated"))
from pomona.v1 import generation_pb2, generation_pb2_grpc

MINUTE_S = 60.0
# The retry policy of docs/service_config.json.
SERVICE_CONFIG = """{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s",
  "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}],
  "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}"""


def main() -> None:
    """Call the server in four ways."""
    model, prompt = sys.argv[1:]
    tls = grpc.ssl_channel_credentials(Path(os.environ["POMONA_CA"]).read_bytes())
    token = grpc.access_token_call_credentials(os.environ["POMONA_TOKEN"])  # goes over TLS only
    credentials = grpc.composite_channel_credentials(tls, token)
    options = [("grpc.service_config", SERVICE_CONFIG)]
    with grpc.secure_channel(os.environ["POMONA_SERVER"], credentials, options=options) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        print("answer:", answer(stub, model, prompt))
        print("cancelled:", cancelled(stub, model, prompt))
        print("late:", answer(stub, model, prompt, timeout_s=0.001))
        print("refused:", answer(stub, "nothing", prompt))


def answer(stub, model: str, prompt: str, timeout_s: float = MINUTE_S) -> str:
    """Print the text as it comes."""
    call = stub.StreamGenerate(request(model, prompt), timeout=timeout_s)
    try:
        for response in call:
            if response.WhichOneof("event") == "completed":
                print(f"\n{response.completed.usage.completion_tokens} tokens")
            else:
                print(response.delta.text, end="", flush=True)
    except grpc.RpcError as failure:
        return outcome(failure)
    finally:
        call.cancel()
    return "OK"


def cancelled(stub, model: str, prompt: str) -> str:
    """End a call once it has begun; the server then computes no further."""
    call = stub.StreamGenerate(request(model, prompt), timeout=MINUTE_S)
    try:
        for _ in call:
            call.cancel()
    except grpc.RpcError as failure:
        return outcome(failure)
    return "OK"


def request(model: str, prompt: str) -> generation_pb2.StreamGenerateRequest:
    """Ask for an answer; what is not set is the model's default."""
    request = generation_pb2.StreamGenerateRequest(model=model)
    request.spec.chat.messages.add(role=generation_pb2.ROLE_USER, text=prompt)
    request.spec.sampling.temperature = 0
    request.spec.stopping.max_tokens = 12
    return request


def outcome(failure: grpc.RpcError) -> str:
    """Tell how a call ended: the status, and the reason and the delay that Pomona sends with it."""
    told = failure.code().name
    status = rpc_status.from_call(failure)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details if status else ():
        if detail.Unpack(info):
            told += f" {info.reason} model={info.metadata.get('model')}"
        elif detail.Unpack(retry):
            told += f" retry in {retry.retry_delay.ToTimedelta().total_seconds():g}s"
    return told


if __name__ == "__main__":
    main()
