"""From a checkpoint to a model that is ready to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from models import gemma3, gemma4, llama, mistral, phi3, qwen2, qwen3, qwen3_5, qwen3_moe, smollm3
from models.adapters.target import AdapterTarget
from models.borrowed.loading import load_borrowed
from models.checkpoint.checkpoint import Checkpoint, TextCheckpoint
from models.checkpoint.errors import CheckpointRejected
from models.checkpoint.kv_scheme import KVScheme, KVSchemeError
from models.checkpoint.kv_sizes import KVSizes
from models.checkpoint.qwen3_5_view import qwen3_5_view
from models.checkpoint.sizes import Computation
from models.checkpoint.text_config import TextConfig
from models.checkpoint.tokenizer import Tokenizer
from models.checkpoint.view import WeightsView
from models.checkpoint.weights import Weights
from models.errors import ModelError
from models.experts.account import HeldExperts
from models.experts.holding import Holding
from models.experts.options import ExpertsOptions
from models.layers.adapter_bank import AdapterBank
from models.layers.arithmetic import Arithmetic
from models.layers.cache import Cache
from models.layers.caches import Room, make_cache
from models.layers.choosing import arithmetic_of, dtype_of
from models.layers.device import device_name
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.recurrence import RecurrentLayer
from models.recorded import RecordedModel
from models.step import NumericPath
from models.text_model import TextModel
from native import kernels

RESIDENT = ExpertsOptions()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is: its phase in one word, and bytes."""

    phase: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can step.

    Attributes:
        model: the graph with its weights in memory.
        tokenizer: text to token ids and back.
        checkpoint: where both come from.
        path: how it computes.
        device: `cpu`, `metal` or `cuda`.
        dtype: of hidden states, and of keys and values that are not packed.
        arithmetic: whose operations it is made of.
        kv_scheme: how its caches keep keys and values.
        weights_bytes: bytes that the weights take in memory, routed experts in slabs or in a mapped file left out.
        experts: how routed experts are held; None: it has none.
        implementation: whose graph it is: `pomona` or `mlx-lm`.
        shares_prefixes: whether other sequences can begin behind what a sequence leaves in its cache.
        make_own_cache: makes the caches of a model that brings its own; None: they are ours.
        adapters: what is mounted beside the model; None: it takes no adapters.
    """

    model: TextModel
    tokenizer: Tokenizer
    checkpoint: Checkpoint
    path: NumericPath
    device: str
    dtype: mx.Dtype
    arithmetic: Arithmetic
    kv_scheme: KVScheme
    weights_bytes: int
    experts: HeldExperts | None = None
    implementation: Literal["pomona", "mlx-lm"] = "pomona"
    shares_prefixes: bool = True
    make_own_cache: Callable[[Room], Cache] | None = None
    adapters: AdapterBank | None = None

    @property
    def compute_dtype(self) -> str:
        """The dtype in a word: `float32`, `float16` or `bfloat16`."""
        return str(self.dtype).rpartition(".")[2]

    @property
    def text_checkpoint(self) -> TextCheckpoint:
        """The checkpoint of a model that is written here.

        Raises:
            ModelError: the model is mlx-lm's, whose config is not read beyond what any model has.
        """
        if not isinstance(self.checkpoint, TextCheckpoint):
            raise ModelError("the checkpoint is of an architecture that is not written here")
        return self.checkpoint

    @property
    def can_go_back(self) -> bool:
        """Whether a sequence can drop tokens that were computed, as guesses need it: a layer's state cannot."""
        layers = self.model.attention_layers
        return self.shares_prefixes and not any(isinstance(layer, RecurrentLayer) for layer in layers)

    @property
    def kv_sizes(self) -> KVSizes:
        """What keys and values take."""
        return KVSizes.of(self.model.attention_layers, self.kv_scheme, self.dtype.size)

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers, packed where they are."""
        return self.kv_sizes.token_bytes

    def sequence_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the keys and values of one sequence; see `KVSizes.sequence_bytes`."""
        return self.kv_sizes.sequence_bytes(num_tokens)

    def close(self) -> None:
        """End what was started for the model; it steps no more. A second call does nothing."""
        if self.experts is not None:
            self.experts.close()

    def make_cache(self, num_slots: int, num_tokens: int | None = None, num_part_tokens: int = 0) -> Cache:
        """Return an empty cache for `num_slots` sequences, with room for so many tokens of all, and of parts."""
        room = Room(num_slots, num_tokens, num_part_tokens, self.path is NumericPath.REFERENCE)
        if self.make_own_cache is not None:
            return self.make_own_cache(room)
        return make_cache(self.model.attention_layers, self.arithmetic, self.dtype, self.kv_scheme, room)


def load(
    checkpoint: Checkpoint,
    path: NumericPath,
    report: Callable[[LoadProgress], None],
    *,
    cpu_kernels: bool = True,
    kv_scheme: KVScheme | None = None,
    experts: ExpertsOptions = RESIDENT,
) -> LoadedModel:
    """Read a checkpoint into memory on MLX's default device.

    Call it on the thread that will step the model: MLX's streams belong to threads.

    Args:
        checkpoint: its headers, already checked; of another architecture than those here it has no `text`, and is
            mlx-lm's to compute.
        path: how to compute.
        report: called with each bit of progress, on this thread.
        cpu_kernels: whether the fast path computes with native kernels where the device is the CPU and they are built.
        kv_scheme: how caches keep keys and values; None: as they are computed.
        experts: how routed experts are held; a model without any takes no notice.

    Raises:
        CheckpointError: an architecture without an entry here, or a tensor that is missing, left over, of another
            shape or unreadable.
        KVSchemeError: the model is mlx-lm's, and its keys and values are not to be kept as they are computed.
    """
    scheme = KVScheme() if kv_scheme is None else kv_scheme
    if not isinstance(checkpoint, TextCheckpoint):
        return _borrow(checkpoint, path, report, scheme)
    holding = Holding.of(checkpoint, experts)
    try:
        return _load(holding, path, report, scheme, cpu_kernels=cpu_kernels)
    except BaseException:
        holding.close()
        raise


def _load(
    holding: Holding,
    path: NumericPath,
    report: Callable[[LoadProgress], None],
    scheme: KVScheme,
    *,
    cpu_kernels: bool,
) -> LoadedModel:
    """Load a model that is written here."""
    checkpoint = holding.checkpoint
    computation = Computation.of(
        checkpoint,
        device_name(),
        has_kernels=cpu_kernels and kernels.is_available(),
        is_reference=path is NumericPath.REFERENCE,
    )
    dtype, arithmetic = dtype_of(computation), arithmetic_of(computation)
    weights = Weights(
        checkpoint,
        dtype,
        arithmetic,
        view=_view_of(checkpoint),
        on_read=lambda done, total: report(LoadProgress("reading", done, total)),
        experts=holding.hooks,
    )
    model = _build(checkpoint, weights)
    keeps_states = any(isinstance(layer, RecurrentLayer) for layer in model.attention_layers)
    if arithmetic.is_paged and weights.is_recordable and not keeps_states:
        model = RecordedModel(model)
    weights.audit()
    weights.materialize(lambda done, total: report(LoadProgress("weights", done, total)))
    holding.fill(lambda done, total: report(LoadProgress("experts", done, total)))
    tokenizer = checkpoint.tokenizer()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        checkpoint=checkpoint,
        path=path,
        device=computation.device,
        dtype=dtype,
        arithmetic=arithmetic,
        kv_scheme=scheme,
        weights_bytes=weights.nbytes,
        experts=holding.held(weights.experts_bytes, weights.mapped_bytes),
        adapters=AdapterBank(weights.adapter_targets, arithmetic),
    )


def adapter_targets(checkpoint: TextCheckpoint) -> Mapping[str, AdapterTarget]:
    """Return the layers of a checkpoint's model that adapters may change, by their modules; no weights are read.

    Raises:
        CheckpointError: as `load`.
    """
    weights = Weights(checkpoint, mx.float32, view=_view_of(checkpoint))
    _build(checkpoint, weights)
    return weights.adapter_targets


def _borrow(
    checkpoint: Checkpoint, path: NumericPath, report: Callable[[LoadProgress], None], scheme: KVScheme
) -> LoadedModel:
    """Load a model that mlx-lm computes."""
    if not scheme.is_plain:
        raise KVSchemeError("a model that mlx-lm computes keeps keys and values as they are computed")
    device = device_name()
    model, weights_bytes = load_borrowed(
        checkpoint,
        mx.float32 if device == "cpu" else None,
        lambda done, total: report(LoadProgress("weights", done, total)),
        compiles=device != "cpu" or path is NumericPath.REFERENCE,
    )
    return LoadedModel(
        model=model,
        tokenizer=checkpoint.tokenizer(),
        checkpoint=checkpoint,
        path=path,
        device=device,
        dtype=model.dtype,
        arithmetic=MlxArithmetic(),
        kv_scheme=scheme,
        weights_bytes=weights_bytes,
        implementation="mlx-lm",
        shares_prefixes=model.shares_prefixes,
        make_own_cache=model.make_cache,
    )


def _view_of(checkpoint: TextCheckpoint) -> WeightsView | None:
    view_of = _VIEWS.get(checkpoint.architecture)
    return None if view_of is None else view_of(checkpoint)


def _build(checkpoint: TextCheckpoint, weights: Weights) -> TextModel:
    builder = _BUILDERS.get(checkpoint.architecture)
    if builder is None:
        problem = f"the architecture {checkpoint.architecture} is not one of {', '.join(_BUILDERS)}"
        raise CheckpointRejected(problem, file="config.json", key="model_type")
    return builder(checkpoint.text, weights)


_BUILDERS: Mapping[str, Callable[[TextConfig, Weights], TextModel]] = {
    "llama": llama.build,
    "mistral": mistral.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3_moe": qwen3_moe.build,
    "smollm3": smollm3.build,
    "phi3": phi3.build,
    "gemma3_text": gemma3.build,
    "gemma4_text": gemma4.Gemma4,
    "qwen3_5": qwen3_5.build,
    "qwen3_5_moe": qwen3_5.build,
}
_VIEWS: Mapping[str, Callable[[Checkpoint], WeightsView | None]] = {
    "qwen3_5": qwen3_5_view,
    "qwen3_5_moe": qwen3_5_view,
}
