"""Calls that several tests of the services make."""

import asyncio
from typing import Any

from pomona.v1 import generation_pb2 as pb
from pomona.v1 import worker_pb2

from tests.support.worker_client import WorkerClient, request, stamps

CONTEXT_TOKENS = 1300
LONG_TOKENS = 1200
MAX_RESPONSE_BYTES = 2000


async def answers_still(client: WorkerClient) -> bool:
    answer = await client.ask(request(request_id="after"))
    return answer.usage.completion_tokens == 4


def long_request(request_id: str, kind: type[Any] = pb.StreamGenerateRequest, max_tokens: int = LONG_TOKENS) -> Any:
    """Ask for more tokens than anything here waits for."""
    spec = pb.GenerationSpec(prompt="ab", stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True))
    return request(kind, request_id, spec=spec)


def sent(message: Any) -> dict[str, Any]:
    return {"body": message.SerializeToString(), "stamped": stamps(message)}


async def listed(client: WorkerClient) -> dict[str, Any]:
    answer = await client.gateway.ListWorkerRequests(
        worker_pb2.ListWorkerRequestsRequest(), metadata=client.worker.metadata()
    )
    return {each.request_id: each for each in answer.requests}


async def eventually_listed(client: WorkerClient, request_id: str, state: Any) -> Any:
    async with asyncio.timeout(10):
        while True:
            found = (await listed(client)).get(request_id)
            if found is not None and found.state == state:
                return found
