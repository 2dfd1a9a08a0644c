// Checks products with matrices that are not quantized, without Python and MLX: `make check-native`.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "elements.h"
#include "harness.h"
#include "instruction_set.h"
#include "linear.h"
#include "pool.h"

namespace {

using pomona::DenseMatrix;
using pomona::FloatType;
using pomona::Rows;
using namespace harness;

constexpr FloatType kTypes[] = {FloatType::float32, FloatType::bfloat16, FloatType::float16};
// Less than a unit, whole units, a rest behind some, a chunk, and a rest behind chunks.
constexpr int64_t kWidths[] = {1, 7, 32, 45, 96, 768, 769, 1637};

int64_t bytes_of(FloatType type) {
    return type == FloatType::float32 ? 4 : 2;
}

/// Writes a random number that the type holds without rounding, and returns it.
float random_value(FloatType type, uint8_t* stored) {
    int sign = random_below(2);
    if (type == FloatType::float16) {
        int exponent = random_below(16);  // 0: not a normal number
        int fraction = random_below(1024);
        int significand = exponent == 0 ? fraction : 1024 + fraction;
        float value = std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - 25);
        auto bits = static_cast<uint16_t>(sign << 15 | exponent << 10 | fraction);
        std::memcpy(stored, &bits, sizeof(bits));
        return sign ? -value : value;
    }
    auto wide = static_cast<uint32_t>(sign << 31 | (118 + random_below(12)) << 23 | random_below(1 << 23));
    if (type == FloatType::bfloat16) {
        auto bits = static_cast<uint16_t>(wide >> 16);
        std::memcpy(stored, &bits, sizeof(bits));
        wide = static_cast<uint32_t>(bits) << 16;
    } else {
        std::memcpy(stored, &wide, sizeof(wide));
    }
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

/// A random matrix whose buffer is exactly as long as what it holds.
struct Matrix {
    Matrix(int64_t rows, int64_t columns, FloatType type)
        : stored(rows * columns * bytes_of(type)), weights(rows * columns) {
        for (int64_t i = 0; i < rows * columns; ++i) {
            weights[i] = random_value(type, stored.data() + i * bytes_of(type));
        }
        view = {stored.data(), type, rows, columns};
    }

    std::vector<uint8_t> stored;
    std::vector<float> weights;
    DenseMatrix view;
};

std::string name_of(const Matrix& matrix, int64_t num_rows) {
    return std::string(pomona::instructions().name) + ", type " + std::to_string(static_cast<int>(matrix.view.type)) +
           ", " + std::to_string(num_rows) + " x " + std::to_string(matrix.view.columns) + " x " +
           std::to_string(matrix.view.rows);
}

/// The largest error of any output, as a part of what its products add up to without their signs.
double error_of(const Input& x, const Matrix& matrix, const std::vector<float>& y) {
    double worst = 0;
    for (size_t row = 0; row < x.offsets.size(); ++row) {
        for (int64_t n = 0; n < matrix.view.rows; ++n) {
            double sum = 0;
            double size = 1e-30;
            for (int64_t k = 0; k < matrix.view.columns; ++k) {
                double value = x.values[x.offsets[row] + k * x.step];
                double product = value * matrix.weights[n * matrix.view.columns + k];
                sum += product;
                size += std::fabs(product);
            }
            double error = std::fabs(y[row * matrix.view.rows + n] - sum) / size;
            worst = error <= worst ? worst : error;  // what is no number counts as the worst
        }
    }
    return worst;
}

std::vector<float> product_of(const Input& x, const DenseMatrix& matrix) {
    std::vector<float> y(x.offsets.size() * matrix.rows, NAN);
    pomona::multiply(x.rows(), std::vector<DenseMatrix>{matrix}, {y.data()});
    return y;
}

bool equal_bits(const float* left, const std::vector<float>& right) {
    return right.empty() || std::memcmp(left, right.data(), right.size() * sizeof(float)) == 0;
}

void check_products() {
    for (FloatType type : kTypes) {
        for (int64_t columns : kWidths) {
            for (int64_t rows : {1 + random_below(9), 1 + random_below(300)}) {
                Matrix matrix(random_below(40), columns, type);
                Input x(rows, columns, 1 + random_below(2));
                double error = error_of(x, matrix, product_of(x, matrix.view));
                expect(error < kTolerance, name_of(matrix, rows) + ": error " + std::to_string(error));
            }
        }
    }
}

/// The check above sees a matrix of which one value is another.
void check_that_errors_are_found() {
    Matrix matrix(5, 45, FloatType::float32);
    Input x(3, 45, 1);
    std::vector<float> y = product_of(x, matrix.view);
    matrix.weights[2 * 45 + 44] += 1;
    expect(error_of(x, matrix, y) > kTolerance, "a wrong value is found");
}

void check_empty_products() {
    Matrix plain(3, 64, FloatType::float16);
    Matrix no_outputs(0, 64, FloatType::float16);
    Matrix no_columns(3, 0, FloatType::float16);
    product_of(Input(0, 64, 1), plain.view);
    product_of(Input(2, 64, 1), no_outputs.view);
    std::vector<float> y = product_of(Input(2, 0, 1), no_columns.view);
    expect(y == std::vector<float>(6, 0.0f), "a product without columns is zero");
}

/// Every row has the bits that it has alone, whatever the number of rows and threads.
void check_rows_are_independent() {
    constexpr int kRows = 300;
    for (FloatType type : kTypes) {
        for (int64_t columns : kWidths) {
            Matrix matrix(23, columns, type);
            Input x(kRows, columns, 1);
            std::vector<float> alone(kRows * 23);
            for (int row = 0; row < kRows; ++row) {
                Rows one{x.values.data(), {x.offsets[row]}, 1};
                pomona::multiply(one, std::vector<DenseMatrix>{matrix.view}, {alone.data() + row * 23});
            }
            for (int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 33, 34, 127, 128, 129, 131, 299, 300}) {
                int begin = random_below(kRows - count + 1);
                Rows some{x.values.data(), {x.offsets.begin() + begin, x.offsets.begin() + begin + count}, 1};
                std::vector<float> y(count * 23, NAN);
                pomona::Pool::shared().resize(1 + random_below(4));
                pomona::multiply(some, std::vector<DenseMatrix>{matrix.view}, {y.data()});
                expect(equal_bits(alone.data() + begin * 23, y),
                       name_of(matrix, count) + ": rows differ from those multiplied alone");
            }
        }
    }
}

/// Several matrices at once, an addend, and what joins two products.
void check_joined_products() {
    for (int64_t columns : kWidths) {
        for (int64_t rows : {1, 3, 33, 131}) {
            Matrix gate(45, columns, kTypes[random_below(3)]);
            Matrix up(45, columns, kTypes[random_below(3)]);
            Input x(rows, columns, 1);
            std::vector<float> gates = product_of(x, gate.view), ups = product_of(x, up.view);
            std::vector<float> first(gates.size()), second(gates.size()), expected(gates.size());
            pomona::multiply(x.rows(), std::vector<DenseMatrix>{gate.view, up.view}, {first.data(), second.data()});
            expect(equal_bits(first.data(), gates) && equal_bits(second.data(), ups),
                   name_of(gate, rows) + ": a product beside another differs");
            Input addend(rows, 45, 1 + random_below(2));
            for (size_t i = 0; i < gates.size(); ++i) {
                expected[i] = gates[i] + addend.values[i * addend.step];
            }
            pomona::multiply_and_add(x.rows(), gate.view, addend.rows(), first.data());
            expect(equal_bits(first.data(), expected), name_of(gate, rows) + ": a product with an addend differs");
            auto count = static_cast<int64_t>(gates.size());
            pomona::join_swiglu({gates.data(), {0}, 1}, {ups.data(), {0}, 1}, count, expected.data());
            pomona::multiply_swiglu(x.rows(), gate.view, up.view, first.data());
            expect(equal_bits(first.data(), expected), name_of(gate, rows) + ": joined products differ");
        }
    }
}

void check_rows_are_looked_up() {
    for (FloatType type : kTypes) {
        for (int64_t columns : kWidths) {
            Matrix matrix(9, columns, type);
            std::vector<int64_t> indices = {8, 0, 3, 3};
            std::vector<float> values(indices.size() * columns);
            pomona::expand_rows(matrix.view, indices, values.data());
            bool equal = true;
            for (size_t i = 0; i < values.size(); ++i) {
                equal = equal && values[i] == matrix.weights[indices[i / columns] * columns + i % columns];
            }
            expect(equal, name_of(matrix, 4) + ": rows differ");
        }
    }
}

/// Rows of which each is for one of two products of other ranks, or for none.
void check_low_rank_products() {
    constexpr int64_t kRows = 150;  // more than are packed at once
    for (FloatType type : kTypes) {
        for (int64_t columns : kWidths) {
            int64_t width = 1 + random_below(70);
            Matrix down[] = {Matrix(3, columns, type), Matrix(9, columns, type)};
            Matrix up[] = {Matrix(3, width, type), Matrix(9, width, type)};
            std::vector<float> x(kRows * columns), addend(kRows * width), y(kRows * width);
            for (std::vector<float>* values : {&x, &addend}) {
                for (float& value : *values) {
                    value = static_cast<float>(random_below(2001) - 1000) / 1000;
                }
            }
            Rows rows{x.data(), {}, 1}, added{addend.data(), {}, 1};
            std::vector<pomona::LowRank> parts = {{down[0].view, up[0].view, 2.0f, {}},
                                                  {down[1].view, up[1].view, -0.5f, {}}};
            std::vector<int> part_of;
            for (int64_t row = 0; row < kRows; ++row) {
                rows.offsets.push_back(row * columns);
                added.offsets.push_back(row * width);
                part_of.push_back(random_below(3));
                if (part_of.back() < 2) {
                    parts[part_of.back()].rows.push_back(row);
                }
            }
            pomona::add_low_rank(rows, parts, added, width, y.data());
            bool near = true;
            for (int64_t row = 0; row < kRows; ++row) {
                for (int64_t i = 0; i < width; ++i) {
                    double expected = addend[row * width + i], size = std::abs(expected);
                    int number = part_of[row];
                    for (int64_t k = 0; number < 2 && k < down[number].view.rows; ++k) {
                        double factor = 0, sizes = 0;
                        for (int64_t column = 0; column < columns; ++column) {
                            double product =
                                double{x[row * columns + column]} * down[number].weights[k * columns + column];
                            factor += product;
                            sizes += std::abs(product);
                        }
                        double weight = parts[number].scale * double{up[number].weights[k * width + i]};
                        expected += factor * weight;
                        size += sizes * std::abs(weight);
                    }
                    near = near && std::abs(y[row * width + i] - expected) <= 1e-5 * size;
                }
            }
            expect(near, name_of(down[0], kRows) + ": low-rank products differ");
        }
    }
}

}  // namespace

int main() {
    for (const pomona::Instructions* instructions : pomona::available_instructions()) {
        std::printf("%s\n", instructions->name);
        pomona::choose_instructions(instructions->name);
        check_products();
        check_that_errors_are_found();
        check_empty_products();
        check_rows_are_independent();
        check_joined_products();
        check_rows_are_looked_up();
        check_low_rank_products();
    }
    return summary();
}
