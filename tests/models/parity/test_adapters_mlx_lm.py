"""The reference path behind an adapter gives the logits of mlx-lm behind the same one, bit for bit."""

from pathlib import Path

import mlx.core as mx
import pytest

from models.step import AdapterUse
from tests.models.adapters.mounting import mount, write_for
from tests.models.families import EDGE, GEMMA4_MOE, Q4
from tests.models.parity.equality import assert_bit_equal, load_path
from tests.models.parity.test_families_mlx_lm import prompt_of
from tests.models.stepping import greedy
from tests.support.tiny_adapters import settings_of
from tests.support.tiny_families import Tiny, write_family
from tests.support.tiny_models import write_llama

pytestmark = [
    # mlx-lm brings transformers, and both warn of things that are theirs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

NUM_TOKENS = 24
TINY = {
    "qwen2 biases": Tiny("qwen2"),
    "qwen3 4-bit": Tiny("qwen3", {}, Q4),
    "qwen3 mxfp4": Tiny("qwen3", {}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    "phi3 fused": Tiny("phi3"),
    "phi3 fused 4-bit": Tiny("phi3", {}, Q4),
    "gemma3": Tiny("gemma3_text"),
    "gemma4": Tiny("gemma4_text"),
    "gemma4 edge": Tiny("gemma4_text", EDGE),
    "qwen3_moe beside its experts": Tiny("qwen3_moe"),
    "qwen3_5": Tiny("qwen3_5"),
    "qwen3_5_moe beside its experts": Tiny("qwen3_5_moe"),
    "gemma4 beside its experts": GEMMA4_MOE["gemma4 experts fused"],
}


def assert_parity(folder: Path, adapter: Path, num_prompt_tokens: int = 48, **adapter_options: object) -> None:
    from tests.models.parity.mlx_lm_oracle import greedy_logits

    loaded, prompt = load_path(folder), prompt_of(num_prompt_tokens)
    write_for(adapter, loaded, within="model.layers.", **adapter_options)  # pyright: ignore[reportArgumentType]
    use = AdapterUse(mount(loaded, adapter))
    ours = list(greedy(loaded, prompt, NUM_TOKENS, adapters=(use,)))
    assert_bit_equal(ours, greedy_logits(folder, prompt, NUM_TOKENS, adapter))
    plain = list(greedy(loaded, prompt, NUM_TOKENS))
    assert_bit_equal(plain, greedy_logits(folder, prompt, NUM_TOKENS))
    assert not mx.array_equal(ours[0][1], plain[0][1])


@pytest.mark.parametrize("name", TINY)
def test_logits_of_every_family_are_those_of_mlx_lm(tmp_path: Path, name: str) -> None:
    prefix = "language_model." if name.startswith("qwen3_5") else None  # as mlx-lm names its modules
    assert_parity(write_family(tmp_path / "tiny", TINY[name]), tmp_path / "adapter", prefix=prefix)


@pytest.mark.parametrize("rank", [1, 16, 64])
@pytest.mark.parametrize("quantization", [None, {"group_size": 32, "bits": 4}])
def test_logits_of_every_rank_are_those_of_mlx_lm(
    tmp_path: Path, rank: int, quantization: dict[str, int] | None
) -> None:
    folder = write_llama(tmp_path / "tiny", quantization=quantization)
    assert_parity(folder, tmp_path / "adapter", rank=rank, scale=10.0, size=0.1)


def test_logits_from_a_prompt_of_one_token_are_those_of_mlx_lm(tmp_path: Path) -> None:
    assert_parity(write_llama(tmp_path / "tiny"), tmp_path / "adapter", num_prompt_tokens=1)


def test_what_mlx_lm_writes_of_its_settings_is_read(tmp_path: Path) -> None:
    """Its tool writes all arguments of the training into the file."""
    import json

    from mlx_lm.lora import CONFIG_DEFAULTS

    loaded = load_path(write_llama(tmp_path / "tiny"))
    adapter = write_for(tmp_path / "adapter", loaded)
    written = {**CONFIG_DEFAULTS, **settings_of("mlx"), "train": True}
    (adapter / "adapter_config.json").write_text(json.dumps(written))
    assert mount(loaded, adapter) == 1
