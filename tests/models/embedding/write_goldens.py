"""Writes what transformers computes of the tiny embedder and of the tiny reranker, in float32.

`python -m tests.models.embedding.write_goldens OUT` needs torch and transformers 5.24, which the tests do not: run it
where both are, with MLX beside them, whenever the table changes. Inputs go in one padded batch, as the model cards of
Qwen3-Embedding and Qwen3-Reranker have it; of the embedder it keeps the tokens, the hidden states of the first text,
and three vectors of every text; of the reranker the scores.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - the tests do without it
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.models.embedding.table import DOCUMENTS, INSTRUCTION, QUERIES, QUERY, TEXTS
from tests.support.tiny_embedders import write_embedder, write_reranker

TASK = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
OPTIONS: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}


def main(out: Path) -> None:
    """Write one file with an array for each thing."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        found = vectors(write_embedder(Path(folder) / "embedder"))
        found |= scores(write_reranker(Path(folder) / "reranker"))
    np.savez_compressed(out, allow_pickle=False, **found)


def vectors(path: Path) -> dict[str, np.ndarray]:
    """Return the vectors of all texts."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", pad_token="<|end|>")
    model = AutoModel.from_pretrained(path, **OPTIONS).eval()
    texts = [*TEXTS, *QUERIES]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    hidden = model(**batch).last_hidden_state
    found: dict[str, np.ndarray] = {}
    rows = [row[mask.bool()] for row, mask in zip(hidden, batch["attention_mask"], strict=True)]
    pooled = {"last": hidden[:, -1], "mean": torch.stack([row.mean(0) for row in rows])}
    pooled["first"] = torch.stack([row[0] for row in rows])
    for name, each in pooled.items():
        found[name] = torch.nn.functional.normalize(each, p=2, dim=1).numpy()
    for index, text in enumerate(texts):
        found[f"ids {index}"] = np.array(tokenizer(text)["input_ids"], dtype=np.int32)
    return {**found, "tokens": rows[0].numpy()}


def scores(path: Path) -> dict[str, np.ndarray]:
    """Return how well the documents answer, without an instruction and with one."""
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", pad_token="<|end|>")
    model = AutoModelForCausalLM.from_pretrained(path, **OPTIONS).eval()
    before, behind = (tokenizer.encode(part, add_special_tokens=False) for part in (BEFORE, BEHIND))
    answers = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    found: dict[str, np.ndarray] = {}
    for name, task in (("scores", TASK), ("scores instructed", INSTRUCTION)):
        pairs = [f"<Instruct>: {task}\n<Query>: {QUERY}\n<Document>: {document}" for document in DOCUMENTS]
        ids = [before + each + behind for each in tokenizer(pairs)["input_ids"]]
        batch = tokenizer.pad({"input_ids": ids}, padding=True, return_tensors="pt")
        logits = model(**batch).logits[:, -1]
        found[name] = torch.log_softmax(logits[:, answers], dim=1)[:, 1].exp().numpy()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
