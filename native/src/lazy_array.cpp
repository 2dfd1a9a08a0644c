#include "lazy_array.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "mapped.h"
#include "mlx/allocator.h"

namespace pomona {

namespace mx = mlx::core;

namespace {

/// The bytes of memory from `data` on as they lie there: as many whole pages as hold `num_bytes`, because MLX copies
/// anything else on Metal.
mx::array whole_pages(const std::shared_ptr<LazyMemory>& memory, char* data, size_t num_bytes) {
    size_t page = page_bytes();
    size_t whole_bytes = (num_bytes + page - 1) / page * page;
    if (mapping_kind() == MappingKind::copied) {
        throw MemoryUnshared();
    }
    // In two dimensions, because one would have more bytes than an int counts.
    mx::Shape shape{static_cast<mx::ShapeElem>(whole_bytes / page), static_cast<mx::ShapeElem>(page)};
    if (mapping_kind() == MappingKind::in_place) {
        char* word = data - sizeof(whole_bytes);
        std::memcpy(word, &whole_bytes, sizeof(whole_bytes));
        mx::allocator::Data owner(mx::allocator::Buffer(word), [memory](mx::allocator::Buffer) {});
        return mx::array(std::move(owner), std::move(shape), mx::uint8);
    }
    return mx::array(data, std::move(shape), mx::uint8, [memory](void*) {});
}

/// The first bytes of an array as one of another shape and dtype, in the same memory.
mx::array shaped(const mx::array& bytes, mx::Shape shape, mx::Dtype dtype) {
    auto num_long = std::count_if(shape.begin(), shape.end(), [](auto size) { return size > 1; });
    mx::array found(std::move(shape), dtype, nullptr, {});
    mx::array::Flags flags{};
    flags.contiguous = true;
    flags.row_contiguous = true;
    flags.col_contiguous = num_long <= 1;
    found.copy_shared_buffer(bytes, found.strides(), flags, found.size());
    found.set_status(mx::array::Status::available);
    return found;
}

}  // namespace

LazyArray lazy_array(const std::vector<int64_t>& shape, mx::Dtype dtype) {
    mx::Shape dimensions;
    size_t num_bytes = mx::size_of(dtype);
    for (int64_t dimension : shape) {
        bool fits = dimension > 0 && dimension <= std::numeric_limits<mx::ShapeElem>::max() &&
                    !__builtin_mul_overflow(num_bytes, static_cast<size_t>(dimension), &num_bytes);
        if (!fits || num_bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 2) {
            throw ShapeRejected();
        }
        dimensions.push_back(static_cast<mx::ShapeElem>(dimension));
    }
    auto memory = std::make_shared<LazyMemory>(lazy_array_bytes(static_cast<int64_t>(num_bytes)));
    char* data = memory->data() + page_bytes();
    return {shaped(whole_pages(memory, data, num_bytes), std::move(dimensions), dtype), data, memory};
}

int64_t lazy_array_bytes(int64_t num_bytes) {
    // A page in front, because MLX's CPU allocator keeps the size in the word before the data; whole pages for Metal.
    auto page = static_cast<int64_t>(page_bytes());
    return page + (num_bytes + page - 1) / page * page;
}

}  // namespace pomona
