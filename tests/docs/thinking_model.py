"""A tiny random checkpoint that thinks and calls tools: Qwen 3's marks in its vocabulary and in its chat template."""

import json
from pathlib import Path
from typing import cast

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer

from tests.support.tiny_models import CONFIG, END_TOKEN_ID, write_llama, write_tensors

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
# `tool_calls` come back as they were written, results as the user's turn; thinking of earlier answers is left out.
CHAT_TEMPLATE = """\
{%- if tools %}system: Tools, one a line:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one so: <tool_call>
{"name": "…", "arguments": {…}}
</tool_call>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}user: <tool_response>{{ message.content }}</tool_response>
{% else %}{{ message.role }}: {{ message.content.split('</think>')[-1] }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>
{%- endfor %}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}assistant: {% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}
{%- endif %}"""


def write_thinking_llama(folder: Path) -> Path:
    """Write a checkpoint whose answers begin inside their reasoning, and return its folder.

    It never ends by itself, with the sampling that is the default, but behind a call of a tool.
    """
    write_llama(folder)
    vocabulary = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(vocabulary))
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer.save(str(vocabulary))
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps({**settings, "chat_template": CHAT_TEMPLATE}))
    weights = cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))
    write_tensors(folder, _restrained(weights, tokenizer))
    return folder


def _restrained(tensors: dict[str, mx.array], tokenizer: Tokenizer) -> dict[str, mx.array]:
    """Return weights whose first dimension is much the same for every token, and tells against some tokens."""
    for index in range(CONFIG["num_hidden_layers"]):
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"model.layers.{index}.{name}.weight"][0] = 0
    tensors["model.embed_tokens.weight"][:, 0] = 8
    tensors["model.norm.weight"][0] = 1
    head = tensors["lm_head.weight"]
    head[:, 0] = 0
    # Behind a call it ends, or begins another one: much less likely still.
    against = {END_TOKEN_ID: -0.5, **dict.fromkeys(tokenizer.encode("\n<tool_call>").ids, -3.0)}
    for token_id, weight in against.items():
        head[token_id] = 0
        head[token_id, 0] = weight
    mx.eval(tensors)
    return tensors
