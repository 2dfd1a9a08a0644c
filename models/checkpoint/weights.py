"""Turns the tensors of a checkpoint into layers, and keeps the account of which were used.

Of safetensors files nothing is read before `materialize`. GGUF tensors are read by our own parser as they are taken:
MLX's opens the file for writing, and fails on one that may only be read. What an architecture asks for and what the
checkpoint holds must be the same: one tensor too many or too few is an error that names it.
"""

from __future__ import annotations

import mlx.core as mx

from models.adapters.target import AdapterTarget
from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.expert_tensors import KINDS, ExpertsShape, Kind, source_of
from models.checkpoint.gguf_llama import unpermuted_rows
from models.checkpoint.names import is_expert_name
from models.checkpoint.packing import groups_shape, packed_shape, packing_of
from models.checkpoint.quantization import FLOAT_MODES, GLOBAL_SCALE_MODE, LayerQuantization
from models.checkpoint.shards import ReportBytes, Shards, ignore_bytes
from models.checkpoint.stored_experts import StoredExperts, stored_experts
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.view import WeightsView
from models.layers.arithmetic import Activation, Arithmetic
from models.layers.embedding import Embedding, QuantizedEmbedding, TokenEmbedding
from models.layers.expert_stacks import ExpertMatrix, ExpertStacks
from models.layers.experts import NO_HOOKS, Experts, ExpertsHooks, StackedExperts
from models.layers.float_quantized import FloatEmbedding, FloatLinear
from models.layers.linear import Linear, LinearLayer, QuantizedLinear
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.norms import GatedRMSNorm, RMSNorm
from models.layers.quantized import FloatMatrix, QuantizedMatrix

_BATCH_BYTES = 16 << 20
_FLOATING = frozenset({"F32", "BF16", "F16"})
_DTYPE_WORDS = {mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16"}


class Weights:
    """The tensors of one checkpoint by canonical name, as layers.

    Args:
        checkpoint: its headers, already checked.
        compute_dtype: what floating tensors become that the arithmetic does not read as stored.
        arithmetic: what the layers compute with; by default MLX's own operations.
        view: names and values that the graph asks for where the checkpoint's are others.
        on_read: called with (bytes read, bytes in all) while tensors are read as they are taken.
        experts: what is done with routed experts beside computing with stacks of them.

    Attributes:
        compute_dtype: as given.
        arithmetic: as given.
        adapter_targets: the linear layers made so far that adapters may change, by their modules.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        compute_dtype: mx.Dtype,
        arithmetic: Arithmetic | None = None,
        *,
        view: WeightsView | None = None,
        on_read: ReportBytes = ignore_bytes,
        experts: ExpertsHooks = NO_HOOKS,
    ) -> None:
        self.compute_dtype = compute_dtype
        self.experts_hooks = experts
        self._has_streamed_experts = False
        self.arithmetic = MlxArithmetic() if arithmetic is None else arithmetic
        self.adapter_targets: dict[str, AdapterTarget] = {}
        self._checkpoint = checkpoint if view is None else view.of(checkpoint)
        self._repairs = view is not None and view.repair is not None
        repair = None if view is None else view.repair
        self._shards = Shards(self._checkpoint, repair=repair, on_read=on_read, mapped=experts.mapped)
        self._taken: dict[str, mx.array] = {}
        self._kept: dict[str, mx.array] = {}
        self._modules: set[str] = set()
        self._ignored: set[str] = set()
        self._unused = set(self._checkpoint.tensors)

    @property
    def is_recordable(self) -> bool:
        """Whether no layer made so far does something in a forward that is no operation of its graph."""
        return self.experts_hooks.observe is None and not self._has_streamed_experts

    @property
    def nbytes(self) -> int:
        """Bytes of everything that the layers made so far keep in memory of this process's own."""
        return sum(array.nbytes for name, array in self._kept.items() if not self._shards.is_mapped(name, array))

    @property
    def experts_bytes(self) -> int:
        """Of `nbytes`, those of routed experts."""
        kept = ((name, array) for name, array in self._kept.items() if is_expert_name(name))
        return sum(array.nbytes for name, array in kept if not self._shards.is_mapped(name, array))

    @property
    def mapped_bytes(self) -> int:
        """Bytes of everything that the layers made so far keep and that stays in its file."""
        return sum(array.nbytes for name, array in self._kept.items() if self._shards.is_mapped(name, array))

    def take(self, name: str, shape: tuple[int, ...], dtype: mx.Dtype | None = None) -> mx.array:
        """Return a tensor of floats; not evaluated.

        Args:
            name: canonical name.
            shape: what the config says it must be.
            dtype: that it becomes; None: the compute dtype.

        Raises:
            CheckpointCorrupt: it is missing, has another shape, or cannot be read.
            CheckpointRejected: it is of codes or of floats that are not computed with.
        """
        self._check_floating(name)
        return self._take(name, shape, self.compute_dtype if dtype is None else dtype)

    def linear(
        self, module: str, outputs: int, inputs: int, *, bias: bool = False, takes_adapters: bool = True
    ) -> LinearLayer:
        """Return a linear layer.

        Args:
            module: canonical name, such as `model.layers.0.self_attn.q_proj`; that of the embedding for a tied head.
            outputs: rows of the weight.
            inputs: columns of the weight.
            bias: whether the layer adds a bias.
            takes_adapters: whether it is called with a step, whose adapters may then change it.

        Raises:
            CheckpointCorrupt, CheckpointRejected: as `take`, and for packing that this build does not run.
        """
        matrix = self._matrix(module, (outputs, inputs))
        added = self._keep(f"{module}.bias", self.take(f"{module}.bias", (outputs,))) if bias else None
        known_as = module if takes_adapters else None
        if takes_adapters:
            self.adapter_targets[module] = AdapterTarget(module, inputs, outputs)
        if isinstance(matrix, mx.array):
            return Linear(matrix, added, self.arithmetic, known_as)
        if isinstance(matrix, FloatMatrix):
            return FloatLinear(matrix, added, self.arithmetic, known_as)
        return QuantizedLinear(matrix, added, self.arithmetic, known_as)

    def embedding(self, module: str, num_tokens: int, width: int) -> TokenEmbedding:
        """Return an embedding [V, E], packed where the checkpoint has it packed; raises as `linear`."""
        matrix = self._matrix(module, (num_tokens, width))
        if isinstance(matrix, mx.array):
            return Embedding(matrix, self.arithmetic)
        if isinstance(matrix, FloatMatrix):
            return FloatEmbedding(matrix, self.compute_dtype)
        return QuantizedEmbedding(matrix, self.arithmetic)

    def experts(self, shape: ExpertsShape, activation: Activation) -> Experts:
        """Return the routed experts of a layer, in whichever layout they are stored; raises as `linear`."""
        if self.experts_hooks.source is not None:
            stored = stored_experts(self._checkpoint, shape, self._read_as)
            experts = None if stored is None else self.experts_hooks.source.experts(stored, self.arithmetic, activation)
            if stored is not None and experts is not None:
                self._leave(stored)
                return experts
        stacks = ExpertStacks(*(self._stack(shape, kind) for kind in KINDS))
        return StackedExperts(stacks, self.arithmetic, activation)

    def norm(self, module: str, width: int, eps: float, *, is_stored_less_one: bool = False) -> RMSNorm:
        """Return a normalization of runs of `width`; raises as `take`.

        Args:
            module: canonical name.
            width: of a run.
            eps: added to the mean square.
            is_stored_less_one: whether the weight is 1 more than what is stored.
        """
        name = f"{module}.weight"
        weight = self.take(name, (width,))
        return RMSNorm(self._keep(name, 1 + weight if is_stored_less_one else weight), eps, self.arithmetic)

    def gated_norm(self, module: str, width: int, eps: float) -> GatedRMSNorm:
        """Return a normalization of runs of `width` that a gate follows; raises as `take`."""
        name = f"{module}.weight"
        return GatedRMSNorm(self._keep(name, self.take(name, (width,))), eps, self.arithmetic)

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint holds a tensor of this canonical name."""
        return name in self._shards.tensors

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: mx.Dtype | None = None, *, factor: float = 1.0
    ) -> mx.array:
        """Return a tensor that a layer keeps, multiplied by `factor`; other arguments and errors as of `take`."""
        tensor = self.take(name, shape, dtype)
        return self._keep(name, tensor if factor == 1 else tensor * factor)

    def ignore(self, module: str) -> None:
        """Accept that a checkpoint holds a module, and all within it, that the model does not read."""
        self._ignored.add(module)
        self._unused = {name for name in self._unused if not name.startswith(f"{module}.")}

    def audit(self) -> None:
        """Refuse a checkpoint of which something was left over.

        Raises:
            CheckpointRejected: naming a tensor that nothing consumed, or a quantized layer that the model lacks.
        """
        if self._unused:
            info = self._checkpoint.tensors[min(self._unused)]
            others = f", nor are {len(self._unused) - 1} others" if len(self._unused) > 1 else ""
            raise CheckpointRejected(f"is no part of this model{others}", file=info.file.name, key=info.stored_name)
        if self._checkpoint.quantization is not None:
            self._checkpoint.quantization.check_modules(self._modules, self._ignored)

    def materialize(self, report: ReportBytes) -> None:
        """Read everything that the layers keep, and let go of the files.

        Args:
            report: called with (bytes done, bytes in all) at the start and after every 16 MiB or so.

        Raises:
            CheckpointCorrupt: a file cannot be read.
        """
        total, done = self.nbytes, 0
        report(done, total)
        batch: list[mx.array] = []
        self._taken.clear()
        for name, array in self._kept.items():
            if self._shards.is_mapped(name, array):
                continue
            batch.append(array)
            if sum(waiting.nbytes for waiting in batch) >= _BATCH_BYTES:
                done += self._read(batch)
                report(done, total)
        self._read(batch)
        report(total, total)
        self._shards.close()

    def _take(self, name: str, shape: tuple[int, ...], dtype: mx.Dtype | None) -> mx.array:
        if name not in self._taken:
            self._taken[name] = self._converted(self._shards.info(name), shape, dtype)
            self._shards.release(name)
            self._unused.discard(name)
        return self._taken[name]

    def _read(self, batch: list[mx.array]) -> int:
        try:
            mx.eval(batch)  # pyright: ignore[reportUnknownMemberType]
        except RuntimeError as error:
            self._shards.close()
            self._kept.clear()
            raise CheckpointCorrupt("cannot be read", file=self._checkpoint.weights_file) from error
        num_bytes = sum(array.nbytes for array in batch)
        batch.clear()
        return num_bytes

    def _matrix(self, module: str, shape: tuple[int, ...]) -> ExpertMatrix:
        """Return a matrix [rows, columns], or a stack of them, which is kept."""
        self._modules.add(module)
        stated = self._checkpoint.layer_quantization(module)
        if stated is None:
            return self._keep(f"{module}.weight", self._dense(f"{module}.weight", shape))
        if stated.mode in FLOAT_MODES:
            return self._floats(module, shape, stated)
        packing = packing_of(self._checkpoint, module, shape, stated)
        codes = self._take(f"{module}.weight", packed_shape(shape, packing), None)
        scales, biases = self._groups(module, groups_shape(shape, packing))
        matrix = QuantizedMatrix(codes, scales, biases, packing.group_size, packing.bits)
        for part, array in zip(("weight", "scales", "biases"), matrix.parts, strict=True):
            self._keep(f"{module}.{part}", array)
        return matrix

    def _stack(self, shape: ExpertsShape, kind: Kind) -> ExpertMatrix:
        source, sizes = source_of(self._shards.tensors, shape, kind), shape.matrix(kind)
        module = f"{shape.module}.{kind}"
        name, *others = source.names
        if name == f"{module}.weight":
            return self._matrix(module, sizes)
        if source.half is not None:
            num_experts, rows, columns = sizes
            both = self._dense(name, (num_experts, 2 * rows, columns))
            stack = mx.contiguous(both[:, source.half * rows : (source.half + 1) * rows])
        elif others:
            stack = mx.stack([self._dense(name, sizes[1:]) for name in source.names])
        else:
            stack = self._dense(name, sizes)
        self._modules.add(module)
        return self._keep(f"{module}.weight", stack)

    def _floats(self, module: str, shape: tuple[int, ...], stated: LayerQuantization) -> FloatMatrix:
        codes = self._take(f"{module}.weight", packed_shape(shape, stated), None)
        scales = self._take(f"{module}.scales", groups_shape(shape, stated), None)
        if codes.dtype != mx.uint32 or scales.dtype != mx.uint8:
            info = self._shards.info(f"{module}.weight")
            raise CheckpointCorrupt(f"is not packed as {stated}", file=info.file.name, key=info.stored_name)
        global_scale = self._global_scale(module, shape[:-2], stated)
        self._keep(f"{module}.weight", codes)
        self._keep(f"{module}.scales", scales)
        if global_scale is not None:
            self._keep(f"{module}.global_scale", global_scale)
        return FloatMatrix(codes, scales, stated.group_size, stated.bits, stated.mode, global_scale)

    def _global_scale(self, module: str, lead: tuple[int, ...], stated: LayerQuantization) -> mx.array | None:
        """Return float32 [], or [X] of a stack, where a matrix of a mode that may have one has one."""
        name = f"{module}.global_scale"
        if stated.mode != GLOBAL_SCALE_MODE or not self.has(name):
            return None
        self._check_floating(name)
        is_listed = not lead and self._shards.info(name).shape == (1,)
        return mx.reshape(self._take(name, (1,) if is_listed else lead, mx.float32), lead)

    def _dense(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """Return a weight as stored where the arithmetic reads it so, else in the compute dtype."""
        if not self.arithmetic.keeps_weights:
            return self.take(name, shape)
        self._check_floating(name)
        return self._take(name, shape, None)

    def _check_floating(self, name: str) -> None:
        """Refuse codes whose scheme nobody states, whose numbers are not the weights, and doubles."""
        info = self._shards.info(name)
        if info.dtype not in _FLOATING:
            problem = f"is of {info.dtype}, and no scheme says how that is read"
            raise CheckpointRejected(problem, file=info.file.name, key=info.stored_name)

    def _groups(self, module: str, shape: tuple[int, ...]) -> tuple[mx.array, mx.array]:
        """Return scales and biases in one dtype."""
        dtype = None if self.arithmetic.keeps_scales else self.compute_dtype
        scales, biases = (self._take(f"{module}.{part}", shape, dtype) for part in ("scales", "biases"))
        if scales.dtype != biases.dtype:
            return scales.astype(self.compute_dtype), biases.astype(self.compute_dtype)
        return scales, biases

    def _converted(self, info: TensorInfo, shape: tuple[int, ...], dtype: mx.Dtype | None) -> mx.array:
        """Return a tensor of this shape, a floating one in `dtype`; None: as stored."""
        if not self._repairs:
            _check_shape(info, shape, info.shape)  # before its file is opened
        array = self._shards.array(info.name)
        if info.axes:
            array = mx.contiguous(mx.transpose(array, info.axes))
        _check_shape(info, shape, array.shape)
        if dtype is not None and mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(dtype)
        if info.permuted_heads:
            array = array[mx.array(unpermuted_rows(shape[0], info.permuted_heads))]
        return array

    def _keep(self, name: str, array: mx.array) -> mx.array:
        return self._kept.setdefault(name, array)

    def _leave(self, stored: StoredExperts) -> None:
        """Note that what is stored of some experts is read elsewhere."""
        self._has_streamed_experts = True
        self._modules.update(f"{stored.shape.module}.{kind}" for kind in KINDS)
        self._unused.difference_update(name for part in stored.parts for name in part.sources)

    def _read_as(self, info: TensorInfo, *, is_weight: bool) -> str:
        """Return the dtype that the arithmetic reads of a tensor of experts."""
        keeps = self.arithmetic.keeps_weights if is_weight else self.arithmetic.keeps_scales
        return info.dtype if keeps or info.dtype not in _FLOATING else _DTYPE_WORDS[self.compute_dtype]


def _check_shape(info: TensorInfo, shape: tuple[int, ...], found: tuple[int, ...]) -> None:
    if found != shape:
        problem = f"has shape {_words(found)}, not {_words(shape)}"
        raise CheckpointCorrupt(problem, file=info.file.name, key=info.stored_name)


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "no dimensions"
