"""Routed experts: every layout is read alike, choices can be watched, and who reads experts himself is told where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from models.checkpoint.checkpoint import TextCheckpoint, open_checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme
from models.checkpoint.stored_experts import StoredExperts, StoredMatrix, StoredStack
from models.checkpoint.weights import Weights
from models.gemma4 import Gemma4
from models.layers.arithmetic import Activation, Arithmetic, Sharing
from models.layers.cache import Cache
from models.layers.caches import Room, make_cache
from models.layers.expert_stacks import ExpertMatrix, ExpertStacks
from models.layers.experts import NO_HOOKS, Answers, Experts, ExpertsHooks, StackedExperts
from models.layers.mixture import Mixture, SharedExpert, SoftmaxRouter
from models.layers.mlx_arithmetic import MlxArithmetic, MlxCpuArithmetic
from models.layers.native_arithmetic import NativeArithmetic
from models.layers.quantized import QuantizedMatrix
from models.qwen3_moe import build
from models.registry import load
from models.step import NumericPath, RowPlan, StepPlan
from models.text_model import TextModel
from native import kernels
from tests.models.decoding import decode_together, random_prompts, uncached_logits
from tests.models.families import BESIDE, Q4, ROUTER8
from tests.support.tiny_families import Tiny, write_family

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, 256, 40)]
NUMPY_DTYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "U32": np.uint32}
QWEN = Tiny("qwen3_moe")
GEMMA = Tiny("gemma4_text", BESIDE)
KINDS = {
    "qwen3_moe": QWEN,
    "qwen3_moe each": Tiny("qwen3_moe", layout="each"),
    "qwen3_moe fused": Tiny("qwen3_moe", layout="fused"),
    "qwen3_moe 4-bit": Tiny("qwen3_moe", quantization=Q4),
    "gemma4 fused": Tiny("gemma4_text", BESIDE, layout="fused"),
    "gemma4 4-bit": Tiny("gemma4_text", BESIDE, {**Q4, **ROUTER8}),
}
ARITHMETICS: list[Any] = [MlxArithmetic, MlxCpuArithmetic, *([NativeArithmetic] if kernels.is_available() else [])]


def opened(folder: Path, tiny: Tiny) -> TextCheckpoint:
    return open_checkpoint(write_family(folder, tiny))


def built(checkpoint: TextCheckpoint, arithmetic: Arithmetic, hooks: ExpertsHooks = NO_HOOKS) -> TextModel:
    weights = Weights(checkpoint, mx.float32, arithmetic, experts=hooks)
    model = (build if checkpoint.architecture == "qwen3_moe" else Gemma4)(checkpoint.text, weights)
    weights.audit()
    assert weights.is_recordable == (hooks is NO_HOOKS)
    weights.materialize(lambda _done, _total: None)
    return model


def hidden(model: TextModel, arithmetic: Arithmetic) -> mx.array:
    cache: Cache = make_cache(model.attention_layers, arithmetic, mx.float32, KVScheme(), Room(1))
    found = model.hidden(cache.begin(StepPlan((RowPlan(0, tuple(PROMPT), 0, ()),))))
    mx.eval(found)
    return found


class Rebuilt:
    """Reads every expert from where it is said to stand, and stacks them."""

    def __init__(self) -> None:
        self.seen: list[StoredExperts] = []

    def experts(self, stored: StoredExperts, arithmetic: Arithmetic, activation: Activation) -> Experts | None:
        self.seen.append(stored)
        gate, up, down = (rebuilt(matrix) for matrix in (stored.gate, stored.up, stored.down))
        return StackedExperts(ExpertStacks(gate, up, down), arithmetic, activation)


def rebuilt(matrix: StoredMatrix) -> ExpertMatrix:
    arrays = [stack_of(part) for part in matrix.parts]
    if matrix.packing is None:
        return arrays[0]
    codes, scales, biases = arrays
    return QuantizedMatrix(codes, scales, biases, matrix.packing.group_size, matrix.packing.bits)


def stack_of(part: StoredStack) -> mx.array:
    found: list[np.ndarray] = []
    for place in part.places:
        content = place.file.read_bytes()[place.offset : place.offset + part.nbytes]
        found.append(np.frombuffer(content, NUMPY_DTYPES[part.dtype]).reshape(part.shape))
    return mx.array(np.stack(found).astype(NUMPY_DTYPES[part.read_as]))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(("tiny", "layouts"), [(QWEN, ["each", "fused"]), (GEMMA, ["each", "fused"])])
def test_every_layout_gives_the_same_bits(
    tmp_path: Path, tiny: Tiny, layouts: list[Any], arithmetic: Callable[[], Arithmetic]
) -> None:
    expected = hidden(built(opened(tmp_path / "stacked", tiny), arithmetic()), arithmetic())
    for layout in layouts:
        other = opened(tmp_path / layout, Tiny(tiny.model_type, tiny.config, layout=layout))
        assert not any("switch_" in name for name in other.tensors)
        assert mx.array_equal(hidden(built(other, arithmetic()), arithmetic()), expected)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", KINDS)
def test_experts_stand_where_a_source_is_told(tmp_path: Path, name: str, arithmetic: Callable[[], Arithmetic]) -> None:
    checkpoint, source = opened(tmp_path, KINDS[name]), Rebuilt()
    found = hidden(built(checkpoint, arithmetic(), ExpertsHooks(source)), arithmetic())
    assert mx.array_equal(found, hidden(built(checkpoint, arithmetic()), arithmetic()))
    assert [stored.shape.layer for stored in source.seen] == list(range(checkpoint.text.num_hidden_layers))
    assert {len(stored.parts) for stored in source.seen} == {9 if "4-bit" in name else 3}


def test_a_source_is_told_which_dtypes_are_read(tmp_path: Path) -> None:
    write_family(tmp_path, KINDS["qwen3_moe 4-bit"])
    halve(tmp_path)
    read: dict[str, set[tuple[str, str]]] = {}
    for arithmetic in ARITHMETICS:
        source = Rebuilt()
        built(open_checkpoint(tmp_path), arithmetic(), ExpertsHooks(source))
        parts = [part for stored in source.seen for part in stored.parts]
        read[arithmetic.__name__] = {(part.dtype, part.read_as) for part in parts}
    assert read["MlxArithmetic"] == {("U32", "U32"), ("F16", "F32")}
    assert read.get("NativeArithmetic", {("U32", "U32"), ("F16", "F16")}) == {("U32", "U32"), ("F16", "F16")}


def halve(folder: Path) -> None:
    stored: Any = mx.load(str(folder / "model.safetensors"))
    tensors = {name: array.astype(mx.float16) if array.dtype == mx.float32 else array for name, array in stored.items()}
    mx.eval(list(tensors.values()))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})


def test_a_source_may_leave_experts_to_be_stacks(tmp_path: Path) -> None:
    class Nothing:
        def experts(self, _stored: StoredExperts, _arithmetic: Arithmetic, _activation: Activation) -> Experts | None:
            return None

    checkpoint = opened(tmp_path, QWEN)
    weights = Weights(checkpoint, mx.float32, MlxArithmetic(), experts=ExpertsHooks(Nothing()))
    build(checkpoint.text, weights)
    weights.audit()
    assert weights.is_recordable


@pytest.mark.parametrize("tiny", [QWEN, GEMMA])
def test_choices_are_observed(tmp_path: Path, tiny: Tiny) -> None:
    seen: list[tuple[int, mx.array]] = []
    hooks = ExpertsHooks(observe=lambda layer, indices: seen.append((layer, indices)))
    checkpoint = opened(tmp_path, tiny)
    hidden(built(checkpoint, MlxArithmetic(), hooks), MlxArithmetic())
    assert [layer for layer, _ in seen] == list(range(checkpoint.text.num_hidden_layers))
    for _, indices in seen:
        numbers = np.array(indices)
        assert numbers.shape == (1, len(PROMPT), 3)
        assert all(len(set(row)) == 3 and min(row) >= 0 and max(row) < 8 for row in numbers[0].tolist())


def test_what_is_shared_is_computed_before_answers_are_taken(tmp_path: Path) -> None:
    events: list[str] = []

    class Told:
        def start(self, x: mx.array, indices: mx.array) -> Answers:
            events.append("asked")

            def answer(*beside: mx.array) -> mx.array:
                events.append(f"taken beside {len(beside)}")
                return mx.ones((*indices.shape, x.shape[-1]))

            return answer

    extra = {
        f"model.layers.0.mlp.shared_expert.{name}.weight": shape
        for name, shape in (("gate_proj", (48, 64)), ("up_proj", (48, 64)), ("down_proj", (64, 48)))
    }
    extra["model.layers.0.mlp.shared_expert_gate.weight"] = (1, 64)
    checkpoint, arithmetic = opened(tmp_path, Tiny("qwen3_moe", extra=extra)), MlxArithmetic()
    weights = Weights(checkpoint, mx.float32, arithmetic)
    names = "model.layers.0.mlp.shared_expert", "model.layers.0.mlp.shared_expert_gate"
    shared = SharedExpert(weights, *names, 48, 64)
    router = SoftmaxRouter(weights.linear("model.layers.0.mlp.gate", 8, 64), 3, Sharing.NORMALIZED, arithmetic)
    mixture = Mixture(0, router, Told(), arithmetic, shared=shared)
    x = mx.random.normal((1, 5, 64))
    found = mixture(x, None)
    assert events == ["asked", "taken beside 1"]
    assert mx.allclose(found - shared(x, None), mx.ones_like(x), atol=1e-5)
    gate = mx.sigmoid(x @ weights.take(f"{names[1]}.weight", (1, 64)).T)
    assert mx.allclose(shared(x, None), gate * (shared.down_proj(shared._gated(x, None), None)), atol=1e-6)


def without(name: str) -> Callable[[dict[str, mx.array]], None]:
    def change(tensors: dict[str, mx.array]) -> None:
        del tensors[name]

    return change


def shorter(name: str) -> Callable[[dict[str, mx.array]], None]:
    def change(tensors: dict[str, mx.array]) -> None:
        tensors[name] = tensors[name][..., :-2, :]

    return change


STACK = "model.layers.1.mlp.switch_mlp.up_proj"
EACH = "model.layers.1.mlp.experts.7.down_proj.weight"
FUSED = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.mark.parametrize("hooks", [NO_HOOKS, ExpertsHooks(Rebuilt())], ids=["stacks", "source"])
@pytest.mark.parametrize(
    ("name", "change", "error", "key"),
    [
        ("qwen3_moe", without(f"{STACK}.weight"), CheckpointCorrupt, f"{STACK}.weight"),
        ("qwen3_moe", shorter(f"{STACK}.weight"), CheckpointCorrupt, f"{STACK}.weight"),
        ("qwen3_moe each", without(EACH), CheckpointCorrupt, EACH),
        ("qwen3_moe each", shorter(EACH), CheckpointCorrupt, EACH),
        ("qwen3_moe fused", shorter(FUSED), CheckpointCorrupt, FUSED),
        ("qwen3_moe fused", without(FUSED), CheckpointCorrupt, "model.layers.1.mlp.switch_mlp.gate_proj.weight"),
        ("qwen3_moe 4-bit", shorter(f"{STACK}.scales"), CheckpointCorrupt, f"{STACK}.scales"),
        ("qwen3_moe 4-bit", without(f"{STACK}.biases"), CheckpointCorrupt, STACK),
        (
            "qwen3_moe each",
            lambda tensors: tensors.update({"model.layers.1.mlp.experts.8.up_proj.weight": tensors[EACH]}),
            CheckpointRejected,
            "model.layers.1.mlp.experts.8.up_proj.weight",
        ),
    ],
)
def test_experts_that_do_not_fit_are_refused_by_name(
    tmp_path: Path,
    name: str,
    change: Callable[[dict[str, mx.array]], None],
    error: type[CheckpointError],
    key: str,
    hooks: ExpertsHooks,
) -> None:
    write_family(tmp_path, KINDS[name])
    stored: Any = mx.load(str(tmp_path / "model.safetensors"))
    tensors: dict[str, mx.array] = dict(stored)
    mx.eval(list(tensors.values()))
    change(tensors)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors, {"format": "mlx"})
    with pytest.raises(error) as caught:
        built(open_checkpoint(tmp_path), MlxArithmetic(), hooks)
    assert caught.value.key == key


@pytest.mark.skipif(not kernels.is_available(), reason="built without the native extension")
@pytest.mark.parametrize("name", ["qwen3_moe 4-bit", "gemma4 4-bit", "qwen3_moe each"])
def test_a_long_decode_has_the_same_bits_in_company_alone_and_uncached(tmp_path: Path, name: str) -> None:
    loaded = load(opened(tmp_path, KINDS[name]), NumericPath.FAST, lambda _: None)
    prompts = random_prompts(seed=3)
    for prompt, (tokens, logits) in zip(prompts, decode_together(loaded, prompts), strict=True):
        ((alone, logits_alone),) = decode_together(loaded, [prompt])
        assert alone == tokens
        assert mx.array_equal(logits_alone, logits)
        assert mx.array_equal(uncached_logits(loaded, prompt, tokens), logits)
