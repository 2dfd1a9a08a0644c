#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "rows.h"

/// What the primitives of this library have in common: the checks of their operands, and how they run.
namespace pomona {

/// Why a kernel cannot take what it was given.
class KernelError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// No kernel knows codes of this width, or groups of this size.
class QuantizationUnsupported : public KernelError {
  public:
    QuantizationUnsupported(int bits, int group_size)
        : KernelError("this quantization has no kernel"), bits(bits), group_size(group_size) {}

    int bits;
    int group_size;
};

/// An array does not fit: its dtype, its shape beside the others', its layout in memory, or a number in it.
class OperandRejected : public KernelError {
  public:
    OperandRejected(std::string operand, std::string problem)
        : KernelError(operand + " " + problem), operand(std::move(operand)), problem(std::move(problem)) {}

    std::string operand;
    std::string problem;
};

void require(bool holds, const char* operand, const char* problem);

void require_float32(const mlx::core::array& array, const char* operand);

/// Kernels read such an array in place. Its layout is known once it has been evaluated.
void require_contiguous(const mlx::core::array& array, const char* operand);

/// x must be of float32, with so many columns.
void require_columns(const mlx::core::array& x, int64_t columns);

/// Indices in a type that the kernels read: int32 and int64 as they are, other integers as int64.
mlx::core::array plain_indices(const mlx::core::array& indices, const char* operand);

/// Such indices as they lie in memory, in the order of rows.
struct Indices {
    const void* values;
    bool are_wide;                 ///< int64 instead of int32
    std::vector<int64_t> offsets;  ///< where each stands, in elements

    /// @param bound each must be at least 0 and less than this.
    std::vector<int64_t> checked(int64_t bound, const char* operand) const;
};

Indices indices_of(const mlx::core::array& array);

/// Where the rows of an array lie, each `copies` times: all its dimensions but the last number rows.
Rows rows_of(const mlx::core::array& array, int64_t copies = 1);

/// Each row of x is for one choice, or for a list of them: the last dimension of `choices`.
void check_choices(const mlx::core::array& x, const mlx::core::array& choices);

/// The row of x that is for each choice.
Rows rows_for_choices(const mlx::core::array& x, const mlx::core::array& choices);

/// The shape of what there is for each choice.
mlx::core::Shape shape_of_answers(const mlx::core::array& choices, int width);

/// What a primitive does once the numbers of its inputs are there.
using Work = std::function<void()>;

/// A primitive that runs on the CPU.
class CpuPrimitive : public mlx::core::Primitive {
  public:
    CpuPrimitive();

    /// Gives the outputs memory and has the work done by the thread of the stream, after what it depends on.
    ///
    /// What the work throws is noted (see `take_failure`), and its outputs are no numbers then. It must not reach the
    /// thread: MLX 0.32.4 loses count of its tasks there, and some dozens of such errors later waits for ever.
    void eval_cpu(const std::vector<mlx::core::array>& inputs, std::vector<mlx::core::array>& outputs) final;

    void eval_gpu(const std::vector<mlx::core::array>&, std::vector<mlx::core::array>&) override;

    /// Checks how the inputs lie in memory and returns what computes the outputs.
    ///
    /// @param inputs whose numbers need not be there yet; they must live until the work is done.
    /// @param outputs of the shapes of `output_shapes`, with memory.
    /// @throws OperandRejected
    virtual Work work(const std::vector<mlx::core::array>& inputs, std::vector<mlx::core::array>& outputs) = 0;
};

/// What work threw since the last call: the first of it, and nothing where none did. On any thread.
std::optional<std::string> take_failure();

/// The only output of a primitive.
template <class Operation>
mlx::core::array made_by(std::shared_ptr<Operation> operation, const std::vector<mlx::core::array>& inputs) {
    mlx::core::Shape shape = operation->output_shapes(inputs).front();
    return mlx::core::array(std::move(shape), mlx::core::float32, std::move(operation), inputs);
}

}  // namespace pomona
