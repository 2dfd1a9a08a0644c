"""The child that renders one checkpoint's chat template, for as long as its worker lives.

A template is code from a checkpoint: it can loop for ever or fill the memory, and neither can be stopped inside a
process. So it runs here, under limits: the kernel ends what computes for too long, `worker.child` what gets
no time to. Messages are JSON objects, each behind its length, on one socket at descriptor 0.
"""

from worker import lifeline

# First, so that a worker that is gone takes a looping template with it.
if __name__ == "__main__":
    lifeline.arm()

import socket
import sys
from typing import Any

from models.checkpoint.chat_template import ChatTemplate, TemplateRejected
from worker.confinement import cpu_limit, ignore_signals, limit_memory, receive, send


def main() -> int:
    """Load the template of the first message, then render until the worker closes the socket."""
    ignore_signals()
    with socket.socket(fileno=0) as worker:
        hello = receive(worker)
        if hello is None:
            return 0
        limit_memory(hello["memory_bytes"])
        try:
            with cpu_limit(hello["timeout_s"]):
                template = ChatTemplate(hello["source"], hello["bos_token"], hello["eos_token"])
        except TemplateRejected as error:
            send(worker, {"rejected": str(error)})
            return 0
        send(worker, {"variables": sorted(template.variables)})
        while (request := receive(worker)) is not None:
            with cpu_limit(hello["timeout_s"]):
                answered = answer(template, request, tells_tail=hello["tells_tail"])
            send(worker, answered)
    return 0


def answer(template: ChatTemplate, request: dict[str, Any], *, tells_tail: bool) -> dict[str, Any]:
    """Render one request, and cut off the part that asks for an answer; what the template refuses is an answer too."""
    variables = {**request["variables"], "tools": request["tools"]}
    is_begun = request["continue_final_message"]
    try:
        text = template.render(
            request["messages"], variables, add_generation_prompt=not is_begun, continue_final_message=is_begun
        )
    except TemplateRejected as error:
        return {"rejected": str(error)}
    has_tail = tells_tail and not is_begun
    return {"text": text, "tail": tail_of(text, template, request["messages"], variables) if has_tail else ""}


def tail_of(text: str, template: ChatTemplate, messages: list[Any], variables: dict[str, Any]) -> str:
    """Return the end of a rendered chat that only asks for an answer; nothing where that cannot be told."""
    try:
        asked = template.render(messages, variables, add_generation_prompt=False, continue_final_message=False)
    except TemplateRejected:
        return ""
    if text.startswith(asked):
        return text[len(asked) :]
    return text[next((at for at, pair in enumerate(zip(text, asked, strict=False)) if len(set(pair)) > 1), len(text)) :]


if __name__ == "__main__":
    sys.exit(main())
