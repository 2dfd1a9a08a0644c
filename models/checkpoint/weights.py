"""Turns the tensors of a checkpoint into layers, and keeps the account of which were used.

Of safetensors files nothing is read before `materialize`. GGUF tensors are read by our own parser as they are taken:
MLX's opens the file for writing, and fails on one that may only be read. What an architecture asks for and what the
checkpoint holds must be the same: one tensor too many or too few is an error that names it.
"""

from __future__ import annotations

import mlx.core as mx

from models.checkpoint.checkpoint import Checkpoint
from models.checkpoint.errors import CheckpointCorrupt, CheckpointRejected
from models.checkpoint.gguf_llama import unpermuted_rows
from models.checkpoint.quantization import (
    AFFINE_BITS,
    AFFINE_GROUP_SIZES,
    FLOAT_MODES,
    GLOBAL_SCALE_MODE,
    LayerQuantization,
)
from models.checkpoint.shards import ReportBytes, Shards, ignore_bytes
from models.checkpoint.tensors import TensorInfo
from models.checkpoint.view import WeightsView
from models.layers.arithmetic import Arithmetic
from models.layers.embedding import Embedding, QuantizedEmbedding, TokenEmbedding
from models.layers.float_quantized import FloatEmbedding, FloatLinear, FloatMatrix
from models.layers.linear import Linear, LinearLayer, QuantizedLinear
from models.layers.mlx_arithmetic import MlxArithmetic
from models.layers.norms import RMSNorm
from models.layers.quantized import QuantizedMatrix

_BATCH_BYTES = 16 << 20
_WORD_BITS = 32
_FLOATING = frozenset({"F32", "BF16", "F16"})


class Weights:
    """The tensors of one checkpoint by canonical name, as layers.

    Args:
        checkpoint: its headers, already checked.
        compute_dtype: what floating tensors become that the arithmetic does not read as stored.
        arithmetic: what the layers compute with; by default MLX's own operations.
        view: names and values that the graph asks for where the checkpoint's are others.
        on_read: called with (bytes read, bytes in all) while tensors are read as they are taken.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        compute_dtype: mx.Dtype,
        arithmetic: Arithmetic | None = None,
        *,
        view: WeightsView | None = None,
        on_read: ReportBytes = ignore_bytes,
    ) -> None:
        self.compute_dtype = compute_dtype
        self.arithmetic = MlxArithmetic() if arithmetic is None else arithmetic
        self._checkpoint = checkpoint if view is None else view.of(checkpoint)
        self._repairs = view is not None and view.repair is not None
        self._shards = Shards(self._checkpoint, repair=view.repair if view else None, on_read=on_read)
        self._taken: dict[str, mx.array] = {}
        self._kept: dict[str, mx.array] = {}
        self._modules: set[str] = set()
        self._ignored: set[str] = set()
        self._unused = set(self._checkpoint.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that the layers made so far keep in memory."""
        return sum(array.nbytes for array in self._kept.values())

    def take(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """Return a tensor of floats in the compute dtype; not evaluated.

        Args:
            name: canonical name.
            shape: what the config says it must be.

        Raises:
            CheckpointCorrupt: it is missing, has another shape, or cannot be read.
            CheckpointRejected: it is of codes or of floats that are not computed with.
        """
        self._check_floating(name)
        return self._take(name, shape, self.compute_dtype)

    def linear(self, module: str, outputs: int, inputs: int, *, bias: bool = False) -> LinearLayer:
        """Return a linear layer.

        Args:
            module: canonical name, such as `model.layers.0.self_attn.q_proj`; that of the embedding for a tied head.
            outputs: rows of the weight.
            inputs: columns of the weight.
            bias: whether the layer adds a bias.

        Raises:
            CheckpointCorrupt, CheckpointRejected: as `take`, and for packing that this build does not run.
        """
        matrix = self._matrix(module, outputs, inputs)
        added = self._keep(f"{module}.bias", self.take(f"{module}.bias", (outputs,))) if bias else None
        if isinstance(matrix, mx.array):
            return Linear(self._keep(f"{module}.weight", matrix), added, self.arithmetic)
        if isinstance(matrix, FloatMatrix):
            return FloatLinear(self._keep_floats(module, matrix), added, self.arithmetic)
        return QuantizedLinear(self._keep_matrix(module, matrix), added, self.arithmetic)

    def embedding(self, module: str, num_tokens: int, width: int) -> TokenEmbedding:
        """Return an embedding [V, E], packed where the checkpoint has it packed; raises as `linear`."""
        matrix = self._matrix(module, num_tokens, width)
        if isinstance(matrix, mx.array):
            return Embedding(self._keep(f"{module}.weight", matrix), self.arithmetic)
        if isinstance(matrix, FloatMatrix):
            return FloatEmbedding(self._keep_floats(module, matrix), self.compute_dtype)
        return QuantizedEmbedding(self._keep_matrix(module, matrix), self.arithmetic)

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

    def has(self, name: str) -> bool:
        """Tell whether the checkpoint holds a tensor of this canonical name."""
        return name in self._shards.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """Return a tensor that a layer keeps as it is, in the compute dtype; raises as `take`."""
        return self._keep(name, self.take(name, shape))

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
        for array in self._kept.values():
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

    def _matrix(self, module: str, rows: int, columns: int) -> mx.array | QuantizedMatrix | FloatMatrix:
        self._modules.add(module)
        stated = self._checkpoint.layer_quantization(module)
        if stated is None:
            return self._dense(f"{module}.weight", (rows, columns))
        if stated.mode in FLOAT_MODES:
            return self._floats(module, rows, columns, stated)
        packing = self._packing(module, columns, stated)
        codes = self._take(f"{module}.weight", (rows, columns * packing.bits // _WORD_BITS), None)
        scales, biases = self._groups(module, (rows, columns // packing.group_size))
        return QuantizedMatrix(codes, scales, biases, packing.group_size, packing.bits)

    def _floats(self, module: str, rows: int, columns: int, stated: LayerQuantization) -> FloatMatrix:
        codes = self._take(f"{module}.weight", (rows, columns * stated.bits // _WORD_BITS), None)
        scales = self._take(f"{module}.scales", (rows, columns // stated.group_size), None)
        if codes.dtype != mx.uint32 or scales.dtype != mx.uint8:
            info = self._shards.info(f"{module}.weight")
            raise CheckpointCorrupt(f"is not packed as {stated}", file=info.file.name, key=info.stored_name)
        return FloatMatrix(
            codes, scales, stated.group_size, stated.bits, stated.mode, self._global_scale(module, stated)
        )

    def _global_scale(self, module: str, stated: LayerQuantization) -> mx.array | None:
        """Return float32 [], where a matrix of a mode that may have one has one."""
        name = f"{module}.global_scale"
        if stated.mode != GLOBAL_SCALE_MODE or not self.has(name):
            return None
        self._check_floating(name)
        shape = self._shards.info(name).shape
        return mx.reshape(self._take(name, (1,) if shape == (1,) else (), mx.float32), ())

    def _dense(self, name: str, shape: tuple[int, int]) -> mx.array:
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

    def _groups(self, module: str, shape: tuple[int, int]) -> tuple[mx.array, mx.array]:
        """Return scales and biases in one dtype."""
        dtype = None if self.arithmetic.keeps_scales else self.compute_dtype
        scales, biases = (self._take(f"{module}.{part}", shape, dtype) for part in ("scales", "biases"))
        if scales.dtype != biases.dtype:
            return scales.astype(self.compute_dtype), biases.astype(self.compute_dtype)
        return scales, biases

    def _packing(self, module: str, columns: int, stated: LayerQuantization) -> LayerQuantization:
        """Return how the shapes say that a weight is packed, which a config's default may state otherwise.

        Only what the config says of this module itself must agree. Source: mlx-lm 0.32.2, `utils.load_model`.
        """
        codes, scales = self._shards.info(f"{module}.weight"), self._shards.info(f"{module}.scales")
        file, key = codes.file.name, codes.stored_name
        if stated.mode != "affine":
            raise CheckpointRejected(f"is packed in the mode {stated.mode}, which is not run", file=file, key=key)
        if codes.dtype != "U32" or len(codes.shape) != 2 or len(scales.shape) != 2 or not scales.shape[1]:
            raise CheckpointCorrupt("is not packed as MLX packs weights", file=file, key=key)
        found = LayerQuantization(codes.shape[1] * _WORD_BITS // columns, columns // scales.shape[1])
        runs = found.bits in AFFINE_BITS and found.group_size in AFFINE_GROUP_SIZES
        explicit = self._checkpoint.quantization is not None and module in self._checkpoint.quantization.per_layer
        if not runs or (explicit and found != stated):
            raise CheckpointCorrupt(f"is packed as {found}, not {stated}", file=file, key=key)
        return found

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

    def _keep_matrix(self, module: str, matrix: QuantizedMatrix) -> QuantizedMatrix:
        self._keep(f"{module}.weight", matrix.codes)
        self._keep(f"{module}.scales", matrix.scales)
        self._keep(f"{module}.biases", matrix.biases)
        return matrix

    def _keep_floats(self, module: str, matrix: FloatMatrix) -> FloatMatrix:
        self._keep(f"{module}.weight", matrix.codes)
        self._keep(f"{module}.scales", matrix.scales)
        if matrix.global_scale is not None:
            self._keep(f"{module}.global_scale", matrix.global_scale)
        return matrix

    def _keep(self, name: str, array: mx.array) -> mx.array:
        return self._kept.setdefault(name, array)


def _check_shape(info: TensorInfo, shape: tuple[int, ...], found: tuple[int, ...]) -> None:
    if found != shape:
        problem = f"has shape {_words(found)}, not {_words(shape)}"
        raise CheckpointCorrupt(problem, file=info.file.name, key=info.stored_name)


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "no dimensions"
