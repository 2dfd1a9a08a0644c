"""One worker process for all tests of the services, and a client on its socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.tiny_models import CHAT_TEMPLATE, write_llama
from tests.support.worker_client import WorkerClient, client_of
from tests.support.worker_process import WorkerProcess

from .calls import CONTEXT_TOKENS, MAX_RESPONSE_BYTES, listed

TEMPLATE_TIMEOUT_S = 2.0
# What the first message says decides how the template misbehaves.
TEMPLATE = (
    "{% set said = messages[0]['content'] %}"
    "{% if said == 'raise' %}{{ raise_exception('no such talk') }}{% endif %}"
    "{% if said == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if said == 'escape' %}{{ ''.__class__.__mro__ }}{% endif %}"
    "{% if said == 'fill' %}{% set full = namespace(text='0123456789') %}"
    "{% for _ in range(40) %}{% set full.text = full.text ~ full.text %}{% endfor %}{% endif %}"
    "{% if mood is defined %}{{ mood }} {% endif %}{% if enable_thinking %}ponder {% endif %}" + CHAT_TEMPLATE
)


@pytest.fixture(scope="package")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = write_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "chat_template": TEMPLATE}))
    process = WorkerProcess(
        folder,
        context_tokens=CONTEXT_TOKENS,
        max_response_bytes=MAX_RESPONSE_BYTES,
        template_timeout_s=TEMPLATE_TIMEOUT_S,
        max_batch_rows=2,
        max_queue_requests=2,
    )
    yield process
    process.end()


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[WorkerClient]:
    async with client_of(worker) as connected:
        await connected.is_active()
        yield connected
        async with asyncio.timeout(10):
            while await listed(connected):
                pass
