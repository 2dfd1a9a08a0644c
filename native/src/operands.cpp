#include "operands.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "mlx/ops.h"

namespace pomona {

namespace mx = mlx::core;

void require(bool holds, const char* operand, const char* problem) {
    if (!holds) {
        throw OperandRejected(operand, problem);
    }
}

void require_float32(const mx::array& array, const char* operand) {
    require(array.dtype() == mx::float32, operand, "is not of float32");
}

void require_contiguous(const mx::array& array, const char* operand) {
    if (array.size() > 0) {
        auto address = reinterpret_cast<uintptr_t>(array.data<char>());
        require(array.flags().row_contiguous, operand, "is not row-contiguous");
        require(address % array.itemsize() == 0, operand, "is misaligned");
    }
}

void require_columns(const mx::array& x, int64_t columns) {
    require_float32(x, "x");
    require(x.ndim() > 0 && x.shape(-1) == columns, "x", "has not one column for each of the matrix");
}

namespace {

/// Where the elements lie whose place along the last axes is 0: all axes before number `end` in the order of rows.
std::vector<int64_t> offsets_of(const mx::array& array, size_t end) {
    std::vector<int64_t> offsets{0};
    for (size_t axis = 0; axis < end; ++axis) {
        int64_t size = array.shape(static_cast<int>(axis));
        if (size == 1) {
            continue;
        }
        std::vector<int64_t> inner;
        inner.reserve(offsets.size() * size);
        for (int64_t offset : offsets) {
            for (int64_t i = 0; i < size; ++i) {
                inner.push_back(offset + i * array.strides()[axis]);
            }
        }
        offsets = std::move(inner);
    }
    return offsets;
}

/// Where a primitive writes.
struct Output {
    char* data;
    size_t num_bytes;
    bool is_float;

    void spoil() const {
        if (is_float) {
            std::fill_n(
                reinterpret_cast<float*>(data), num_bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
        } else {
            std::memset(data, 0, num_bytes);
        }
    }
};

/// The first thing that went wrong since somebody asked.
class Failure {
  public:
    void note(std::string problem) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!problem_) {
            problem_ = std::move(problem);
        }
    }

    std::optional<std::string> take() {
        std::lock_guard<std::mutex> lock(mutex_);
        return std::exchange(problem_, std::nullopt);
    }

  private:
    std::mutex mutex_;
    std::optional<std::string> problem_;
};

Failure& failure() {
    static Failure only;
    return only;
}

}  // namespace

mx::array plain_indices(const mx::array& indices, const char* operand) {
    require(mx::issubdtype(indices.dtype(), mx::integer), operand, "is not of integers");
    bool is_plain = indices.dtype() == mx::int32 || indices.dtype() == mx::int64;
    return is_plain ? indices : mx::astype(indices, mx::int64, mx::Device::cpu);
}

Indices indices_of(const mx::array& array) {
    return {array.data<char>(), array.dtype() == mx::int64, offsets_of(array, array.ndim())};
}

std::vector<int64_t> Indices::checked(int64_t bound, const char* operand) const {
    std::vector<int64_t> found;
    found.reserve(offsets.size());
    for (int64_t offset : offsets) {
        found.push_back(are_wide ? static_cast<const int64_t*>(values)[offset]
                                 : static_cast<const int32_t*>(values)[offset]);
        require(found.back() >= 0 && found.back() < bound, operand, "has a number that lies outside the matrix");
    }
    return found;
}

Rows rows_of(const mx::array& array, int64_t copies) {
    std::vector<int64_t> offsets = offsets_of(array, array.ndim() - 1);
    if (copies != 1) {
        std::vector<int64_t> copied;
        copied.reserve(offsets.size() * copies);
        for (int64_t offset : offsets) {
            copied.insert(copied.end(), copies, offset);
        }
        offsets = std::move(copied);
    }
    return {array.data<float>(), std::move(offsets), array.strides().back()};
}

void check_choices(const mx::array& x, const mx::array& choices) {
    mx::Shape rows(x.shape().begin(), x.shape().end() - 1);
    mx::Shape lists = choices.shape();
    if (x.ndim() == choices.ndim() && choices.ndim() > 0) {
        lists.pop_back();
    }
    require(rows == lists, "choices", "has not one choice, or one list of them, for each row of x");
}

Rows rows_for_choices(const mx::array& x, const mx::array& choices) {
    return rows_of(x, x.ndim() == choices.ndim() ? choices.shape(-1) : 1);
}

mx::Shape shape_of_answers(const mx::array& choices, int width) {
    mx::Shape shape = choices.shape();
    shape.push_back(width);
    return shape;
}

CpuPrimitive::CpuPrimitive() : mx::Primitive(mx::default_stream(mx::Device::cpu)) {}

void CpuPrimitive::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    std::vector<Output> written;
    for (mx::array& output : outputs) {
        output.set_data(mx::allocator::malloc(output.nbytes()));
        written.push_back({output.data<char>(), output.nbytes(), output.dtype() == mx::float32});
    }
    mx::cpu::get_command_encoder(stream()).dispatch([work = work(inputs, outputs), written = std::move(written)] {
        try {
            work();
        } catch (const std::exception& error) {
            failure().note(error.what());
            for (const Output& output : written) {
                output.spoil();
            }
        }
    });
}

std::optional<std::string> take_failure() {
    return failure().take();
}

void CpuPrimitive::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw OperandRejected("stream", "is none of the CPU");
}

}  // namespace pomona
