#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "operands.h"

/// A computation that is recorded once from MLX's graph and from then on is one operation of it.
namespace pomona {

/// Between inputs and outputs stands an operation that is none of this library's.
class NotRecordable : public KernelError {
  public:
    explicit NotRecordable(std::string operation)
        : KernelError("an operation cannot be recorded"), operation(std::move(operation)) {}

    std::string operation;
};

/// What the sizes of an array's dimensions are called. Those of one name are equal, and may change from run to run; one
/// without a name stays as it was recorded.
using Dimensions = std::vector<std::optional<std::string>>;

/// The operations that make some arrays of others, in order. What does not hang on the inputs, such as weights, is kept
/// as it is.
class Program {
  public:
    /// @param inputs whose numbers are not looked at.
    /// @param outputs what operations of this library compute of them; it need not be evaluated.
    /// @param dimensions of each input, then of each output.
    /// @throws NotRecordable
    /// @throws OperandRejected
    Program(const std::vector<mlx::core::array>& inputs,
            const std::vector<mlx::core::array>& outputs,
            const std::vector<Dimensions>& dimensions);

    /// Computes the same of other inputs.
    ///
    /// @return as many arrays as outputs were recorded.
    /// @throws OperandRejected: an input has not the dtype or the shape that it may have.
    std::vector<mlx::core::array> operator()(const std::vector<mlx::core::array>& inputs) const;

    struct Recording;

  private:
    std::shared_ptr<const Recording> recording_;
};

}  // namespace pomona
