"""What can go wrong in `native`.

    NativeError
    ├── NotBuilt
    ├── ExtensionUnloadable
    ├── MappingError
    │   ├── FileUnreadable
    │   ├── RangeOutsideFile
    │   ├── OffsetMisaligned
    │   └── ShapeRejected
    ├── KernelError
    │   ├── QuantizationUnsupported
    │   ├── OperandRejected
    │   └── InstructionSetMissing
    ├── SlabError
    │   ├── SlotBusy
    │   ├── SlotStale
    │   ├── ReadRejected
    │   ├── MemoryUnshared
    │   └── FileUnopened
    └── BlasError
        ├── BlasMissing
        ├── BlasUnloadable
        └── BlasTooLate

No text names a path: whoever catches one of these knows the file, and the text may go on to a client.
The mapping, kernel and slab errors are raised by the C++ part (`src/*bindings.cpp`), which builds them from their
fields.
"""

import os


class NativeError(Exception):
    """Base of every error of this package."""


class NotBuilt(NativeError):
    """Raised when a compiled function is called in an install without the extension (`POMONA_NATIVE=OFF`)."""

    def __init__(self) -> None:
        super().__init__("the native extension is not part of this install")


class ExtensionUnloadable(NativeError):
    """Raised when the extension is there but cannot be imported: no MLX, or not the version it was built for."""

    def __init__(self) -> None:
        super().__init__("the native extension cannot be imported beside the installed mlx")


class MappingError(NativeError):
    """Base of what keeps a range of a file from becoming an array."""


class FileUnreadable(MappingError):
    """Raised when the file cannot be opened or mapped, or is no regular file.

    Attributes:
        code: the system's error number, as in `errno`.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the file cannot be mapped: {os.strerror(code)}")
        self.code = code


class RangeOutsideFile(MappingError):
    """Raised when the range does not lie within the file, or begins in its first 8 bytes.

    Attributes:
        offset: where the range begins, in bytes.
        num_bytes: its length.
        file_bytes: the length of the file.
    """

    def __init__(self, offset: int, num_bytes: int, file_bytes: int) -> None:
        super().__init__(
            f"{num_bytes} bytes from offset {offset} do not lie within bytes 8 to {file_bytes} of the file"
        )
        self.offset = offset
        self.num_bytes = num_bytes
        self.file_bytes = file_bytes


class OffsetMisaligned(MappingError):
    """Raised when the range begins at no multiple of the size of an element.

    Attributes:
        offset: where the range begins, in bytes.
        item_bytes: the size of an element.
    """

    def __init__(self, offset: int, item_bytes: int) -> None:
        super().__init__(f"offset {offset} is no multiple of the element size, {item_bytes} bytes")
        self.offset = offset
        self.item_bytes = item_bytes


class ShapeRejected(MappingError):
    """Raised when a dimension is negative or over 2**31 - 1, or their product does not fit."""

    def __init__(self) -> None:
        super().__init__("the shape cannot be that of an array")


class KernelError(NativeError):
    """Base of what keeps a kernel from running."""


class QuantizationUnsupported(KernelError):
    """Raised when no kernel knows codes of this width or groups of this size.

    Attributes:
        bits: bits a code.
        group_size: columns that share a scale.
    """

    def __init__(self, bits: int, group_size: int) -> None:
        super().__init__(f"no kernel multiplies codes of {bits} bits in groups of {group_size}")
        self.bits = bits
        self.group_size = group_size


class OperandRejected(KernelError):
    """Raised when an array does not fit: its dtype, its shape beside the others', or its layout.

    The layout is known only when the array has been evaluated, so this error may be raised then.

    Attributes:
        operand: the name of the parameter.
        problem: what is wrong with it.
    """

    def __init__(self, operand: str, problem: str) -> None:
        super().__init__(f"{operand} {problem}")
        self.operand = operand
        self.problem = problem


class NotRecordable(KernelError):
    """Raised when a computation cannot become a program: it has an operation that is not one of `native`'s.

    Attributes:
        operation: the name that MLX gives it.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} is no operation that a program can have")
        self.operation = operation


class InstructionSetMissing(KernelError):
    """Raised when this processor, or this build, has no kernels of that name.

    Attributes:
        name: what was asked for.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"no kernels named {name!r} run here")
        self.name = name


class SlabError(NativeError):
    """Base of what keeps a slot of a slab from being filled or used."""


class SlotBusy(SlabError):
    """Raised when a slot is to be filled that is being filled, or is leased.

    Attributes:
        slot: its number.
    """

    def __init__(self, slot: int) -> None:
        super().__init__(f"slot {slot} is in use")
        self.slot = slot


class SlotStale(SlabError):
    """Raised when a slot does not hold what its caller means, or is not leased by it.

    Attributes:
        slot: its number.
    """

    def __init__(self, slot: int) -> None:
        super().__init__(f"slot {slot} holds something else")
        self.slot = slot


class ReadRejected(SlabError):
    """Raised when a read cannot be what was asked for: broken agreements of its caller.

    Attributes:
        problem: one clause.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class MemoryUnshared(SlabError):
    """Raised when MLX copies memory on this device, so that what is read into a slot later would not be seen."""

    def __init__(self) -> None:
        super().__init__("memory is not shared with this device")


class FileUnopened(SlabError):
    """Raised when a file cannot be opened, or is no regular file.

    Attributes:
        code: the system's error number, as in `errno`.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the file cannot be opened: {os.strerror(code)}")
        self.code = code


class BlasError(NativeError):
    """Base of what keeps OpenBLAS from being used; MLX then computes with its own BLAS, right but slow."""


class BlasMissing(BlasError):
    """Raised when a part of the binding is not installed.

    Attributes:
        part: `scipy-openblas32` (the wheel) or `libpomona_blas` (the forwarder, built with the extension).
    """

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is not installed")
        self.part = part


class BlasUnloadable(BlasError):
    """Raised when a part is installed but the system's loader refuses it.

    Attributes:
        part: as in `BlasMissing`.
    """

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is installed but cannot be loaded")
        self.part = part


class BlasTooLate(BlasError):
    """Raised when MLX is already loaded: its calls are bound to its own BLAS by then."""

    def __init__(self) -> None:
        super().__init__("mlx.core is already imported, so its BLAS can no longer be chosen")
