#include "quantized.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "linear.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

constexpr int kWordBits = 32;

// ---- what is asked of the operands -----------------------------------------------------------------------------

void require(bool holds, const char* operand, const char* problem) {
    if (!holds) {
        throw OperandRejected(operand, problem);
    }
}

/// Kernels read codes and scales in place. The layout of an array is known once it has been evaluated.
void require_contiguous(const mx::array& array, const char* operand) {
    if (array.size() > 0) {
        auto address = reinterpret_cast<uintptr_t>(array.data<char>());
        require(array.flags().row_contiguous, operand, "is not row-contiguous");
        require(address % array.itemsize() == 0, operand, "is misaligned");
    }
}

void check_layouts(const mx::array& codes, const mx::array& scales, const mx::array& biases) {
    require_contiguous(codes, "codes");
    require_contiguous(scales, "scales");
    require_contiguous(biases, "biases");
}

bool is_known(int bits, int group_size) {
    bool knows_bits = (bits >= 2 && bits <= 6) || bits == 8;
    return knows_bits && (group_size == 32 || group_size == 64 || group_size == 128);
}

bool is_scale_dtype(mx::Dtype dtype) {
    return dtype == mx::float32 || dtype == mx::bfloat16 || dtype == mx::float16;
}

/// @return the number of columns.
int check_matrix(const QuantizedArrays& matrix, size_t num_dimensions) {
    const auto& [codes, scales, biases, group_size, bits] = matrix;
    if (!is_known(bits, group_size)) {
        throw QuantizationUnsupported(bits, group_size);
    }
    require(codes.dtype() == mx::uint32, "codes", "is not of uint32");
    require(codes.ndim() == num_dimensions, "codes", "has the wrong number of dimensions");
    int64_t columns = static_cast<int64_t>(codes.shape(-1)) * kWordBits / bits;
    require(columns * bits == static_cast<int64_t>(codes.shape(-1)) * kWordBits && columns % group_size == 0 &&
                columns <= std::numeric_limits<mx::ShapeElem>::max(),
            "codes",
            "has rows that are no whole number of groups");
    mx::Shape groups = codes.shape();
    groups.back() = static_cast<mx::ShapeElem>(columns / group_size);
    require(scales.shape() == groups, "scales", "has not one element for each group of codes");
    require(biases.shape() == groups, "biases", "has not one element for each group of codes");
    require(is_scale_dtype(scales.dtype()), "scales", "is not of float32, bfloat16 or float16");
    require(biases.dtype() == scales.dtype(), "biases", "is not of the dtype of scales");
    if (codes.is_available() && scales.is_available() && biases.is_available()) {
        check_layouts(codes, scales, biases);
    }
    return static_cast<int>(columns);
}

void check_rows(const mx::array& x, int columns) {
    require(x.dtype() == mx::float32, "x", "is not of float32");
    require(x.ndim() > 0 && x.shape(-1) == columns, "x", "has not one column for each of the matrix");
}

/// Indices as the kernels read them.
mx::array plain_indices(const mx::array& indices, const char* operand) {
    require(mx::issubdtype(indices.dtype(), mx::integer), operand, "is not of integers");
    return mx::contiguous(mx::astype(indices, mx::int64, mx::Device::cpu), false, mx::Device::cpu);
}

// ---- from arrays to what the kernels know ------------------------------------------------------------------------

QuantizedMatrix view_of(
    const mx::array& codes, const mx::array& scales, const mx::array& biases, int group_size, int bits) {
    check_layouts(codes, scales, biases);
    ScaleType type = scales.dtype() == mx::float32    ? ScaleType::float32
                     : scales.dtype() == mx::bfloat16 ? ScaleType::bfloat16
                                                      : ScaleType::float16;
    int64_t columns = static_cast<int64_t>(codes.shape(-1)) * kWordBits / bits;
    return {codes.data<uint8_t>(),
            scales.data<char>(),
            biases.data<char>(),
            type,
            codes.shape(-2),
            columns,
            group_size,
            bits};
}

/// Where the rows of x lie, each `copies` times.
Rows rows_of(const mx::array& x, int64_t copies) {
    std::vector<int64_t> offsets{0};
    for (size_t axis = 0; axis + 1 < x.ndim(); ++axis) {
        std::vector<int64_t> inner;
        inner.reserve(offsets.size() * x.shape(static_cast<int>(axis)));
        for (int64_t offset : offsets) {
            for (int64_t i = 0; i < x.shape(static_cast<int>(axis)); ++i) {
                inner.push_back(offset + i * x.strides()[axis]);
            }
        }
        offsets = std::move(inner);
    }
    if (copies != 1) {
        std::vector<int64_t> copied;
        copied.reserve(offsets.size() * copies);
        for (int64_t offset : offsets) {
            copied.insert(copied.end(), copies, offset);
        }
        offsets = std::move(copied);
    }
    return {x.data<float>(), std::move(offsets), x.strides().back()};
}

std::vector<int64_t> checked_indices(const int64_t* indices, int64_t count, int64_t bound, const char* operand) {
    for (int64_t i = 0; i < count; ++i) {
        require(indices[i] >= 0 && indices[i] < bound, operand, "has a number that lies outside the matrix");
    }
    return {indices, indices + count};
}

// ---- the primitives ------------------------------------------------------------------------------------------------

/// What the primitives share: the format of the matrix, and that they run on the CPU.
class Quantized : public mx::UnaryPrimitive {
  public:
    Quantized(mx::Stream stream, int group_size, int bits)
        : mx::UnaryPrimitive(stream), group_size_(group_size), bits_(bits) {}

    void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
        throw OperandRejected("x", "is to be computed elsewhere than on the CPU");
    }

    bool is_equivalent(const mx::Primitive& other) const override {
        const auto& quantized = static_cast<const Quantized&>(other);
        return group_size_ == quantized.group_size_ && bits_ == quantized.bits_;
    }

  protected:
    /// Gives `out` its memory and has act(memory) called by the thread of the stream.
    template <class Act>
    void run(mx::array& out, Act act) {
        out.set_data(mx::allocator::malloc(out.nbytes()));
        if (out.size() > 0) {
            mx::cpu::get_command_encoder(stream()).dispatch(std::move(act), out.data<float>());
        }
    }

    int group_size_;
    int bits_;
};

class QuantizedLinear : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, codes, scales, biases
    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
        QuantizedMatrix matrix = view_of(inputs[1], inputs[2], inputs[3], group_size_, bits_);
        run(out, [rows = rows_of(inputs[0], 1), matrix](float* y) { multiply(rows, matrix, y); });
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[0].shape();
        shape.back() = inputs[1].shape(-2);
        return {shape};
    }

    DEFINE_NAME(QuantizedLinear)
};

class GatherQuantizedLinear : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: x, codes, scales, biases, choices
    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
        QuantizedMatrix first = view_of(inputs[1], inputs[2], inputs[3], group_size_, bits_);
        const mx::array& choices = inputs[4];
        int64_t copies = inputs[0].ndim() == choices.ndim() ? choices.shape(-1) : 1;
        run(out,
            [rows = rows_of(inputs[0], copies),
             first,
             choices = choices.data<int64_t>(),
             count = static_cast<int64_t>(choices.size()),
             bound = static_cast<int64_t>(inputs[1].shape(0))](float* y) {
                multiply_chosen(rows, first, checked_indices(choices, count, bound, "choices"), bound, y);
            });
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[4].shape();
        shape.push_back(inputs[1].shape(-2));
        return {shape};
    }

    DEFINE_NAME(GatherQuantizedLinear)
};

class QuantizedRows : public Quantized {
  public:
    using Quantized::Quantized;

    /// inputs: codes, scales, biases, indices
    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
        QuantizedMatrix matrix = view_of(inputs[0], inputs[1], inputs[2], group_size_, bits_);
        run(out,
            [matrix, indices = inputs[3].data<int64_t>(), count = static_cast<int64_t>(inputs[3].size())](
                float* values) {
                expand_rows(matrix, checked_indices(indices, count, matrix.rows, "indices"), values);
            });
    }

    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        mx::Shape shape = inputs[3].shape();
        shape.push_back(inputs[0].shape(-1) * kWordBits / bits_);
        return {shape};
    }

    DEFINE_NAME(QuantizedRows)
};

template <class Operation>
mx::array made_by(int group_size, int bits, const std::vector<mx::array>& inputs) {
    auto operation = std::make_shared<Operation>(mx::default_stream(mx::Device::cpu), group_size, bits);
    mx::Shape shape = operation->output_shapes(inputs).front();
    return mx::array(std::move(shape), mx::float32, std::move(operation), inputs);
}

}  // namespace

mx::array quantized_linear(const mx::array& x, const QuantizedArrays& matrix) {
    check_rows(x, check_matrix(matrix, 2));
    return made_by<QuantizedLinear>(matrix.group_size, matrix.bits, {x, matrix.codes, matrix.scales, matrix.biases});
}

mx::array gather_quantized_linear(const mx::array& x, const QuantizedArrays& matrices, const mx::array& choices) {
    check_rows(x, check_matrix(matrices, 3));
    mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
    mx::Shape shared = choices.shape();
    if (x.ndim() == choices.ndim() && choices.ndim() > 0) {
        shared.pop_back();
    }
    require(rows == shared, "choices", "has not one choice, or one list of them, for each row of x");
    return made_by<GatherQuantizedLinear>(
        matrices.group_size,
        matrices.bits,
        {x, matrices.codes, matrices.scales, matrices.biases, plain_indices(choices, "choices")});
}

mx::array quantized_rows(const QuantizedArrays& matrix, const mx::array& indices) {
    check_matrix(matrix, 2);
    return made_by<QuantizedRows>(matrix.group_size,
                                  matrix.bits,
                                  {matrix.codes, matrix.scales, matrix.biases, plain_indices(indices, "indices")});
}

}  // namespace pomona
