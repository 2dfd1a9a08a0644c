"""Writes tiny random Qwen 3 checkpoints that make vectors or rank, with the files that published ones have."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from tests.support.tiny_families import Tiny, write_family
from tests.support.tiny_models import END_TOKEN_ID

DIMENSIONS = 64
END = "<|end|>"
QUERY_PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PROMPTS: Mapping[str, str] = {"query": QUERY_PROMPT, "document": ""}
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
TIED: Mapping[str, Any] = {"tie_word_embeddings": True}


def write_embedder(
    folder: Path,
    *,
    mode: str = "lasttoken",
    is_normalized: bool = True,
    prompts: Mapping[str, str] | None = PROMPTS,
    tiny: Tiny | None = None,
    seed: int = 0,
) -> Path:
    """Write a checkpoint like Qwen3-Embedding's, and return its folder.

    Args:
        folder: made if it is not there.
        mode: ending of the flag of 1_Pooling/config.json that is true.
        is_normalized: whether modules.json ends with a Normalize.
        prompts: of config_sentence_transformers.json; None: no file of sentence-transformers at all.
        tiny: the model; by default a tied Qwen 3.
        seed: of the weights.
    """
    write_family(folder, tiny or Tiny("qwen3", TIED), seed)
    add_ends(folder, tail=(END,))
    if prompts is not None:
        write_pooling(folder, mode, is_normalized=is_normalized, prompts=prompts)
    return folder


def write_reranker(folder: Path, *, tiny: Tiny | None = None, seed: int = 0) -> Path:
    """Write a checkpoint like Qwen3-Reranker's, and return its folder; no file of it says what it is for."""
    write_family(folder, tiny or Tiny("qwen3"), seed)
    file = folder / "tokenizer.json"
    written = json.loads(file.read_text())
    model = written["model"]
    for left, right in (("y", "e"), ("ye", "s"), ("n", "o")):
        model["vocab"][left + right] = END_TOKEN_ID + 1 + len(model["vocab"]) - 260
        model["merges"].append([left, right])
    file.write_text(json.dumps(written))
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(file))
    return folder


def write_pooling(
    folder: Path, mode: str = "lasttoken", *, is_normalized: bool = True, prompts: Mapping[str, str] = PROMPTS
) -> None:
    """Write the files of sentence-transformers beside a model."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *([("Normalize", "2_Normalize")] if is_normalized else [])]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    flags = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": DIMENSIONS, **flags, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    told = {"prompts": dict(prompts), "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))


def add_ends(folder: Path, lead: Sequence[str] = (), tail: Sequence[str] = ()) -> None:
    """Have the tokenizer put special tokens around every text, as Qwen3-Embedding's post-processor does."""
    file = folder / "tokenizer.json"
    tokenizer: Any = Tokenizer.from_file(str(file))
    tokens = [(name, tokenizer.token_to_id(name)) for name in {*lead, *tail}]
    template = processors.TemplateProcessing(single=" ".join((*lead, "$A", *tail)), special_tokens=tokens)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tokenizer.save(str(file))
