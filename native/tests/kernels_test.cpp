// Checks the kernels without Python and MLX, so that a sanitizer sees nothing but them: `make check-native`.

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "chosen.h"
#include "elements.h"
#include "harness.h"
#include "instruction_set.h"
#include "linear.h"
#include "pool.h"

namespace {

using pomona::FloatType;
using pomona::QuantizedMatrix;
using pomona::Rows;
using namespace harness;

constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
constexpr int kGroups[] = {32, 64, 128};
constexpr FloatType kScaleTypes[] = {FloatType::float32, FloatType::bfloat16, FloatType::float16};

/// A 16-bit float and its value: a positive or negative number that both formats hold without rounding.
struct Half {
    uint16_t bits;
    float value;
};

Half random_half(FloatType type) {
    int sign = random_below(2);
    if (type == FloatType::bfloat16) {
        auto bits = static_cast<uint16_t>(sign << 15 | (118 + random_below(4)) << 7 | random_below(128));
        uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof(value));
        return {bits, value};
    }
    int exponent = random_below(10);  // 0: not a normal number
    int fraction = random_below(1024);
    float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return {static_cast<uint16_t>(sign << 15 | exponent << 10 | fraction), sign ? -value : value};
}

/// A random matrix whose buffers are exactly as long as what they hold.
struct Matrix {
    Matrix(int64_t rows, int64_t columns, int group_size, int bits, FloatType type)
        : codes(rows * columns * bits / 8), weights(rows * columns) {
        for (uint8_t& byte : codes) {
            byte = static_cast<uint8_t>(random_bits()());
        }
        int64_t groups = rows * columns / group_size;
        std::vector<float> scale_values = fill(scales, groups, type);
        std::vector<float> bias_values = fill(biases, groups, type);
        for (int64_t i = 0; i < rows * columns; ++i) {
            int code = 0;
            for (int bit = 0; bit < bits; ++bit) {
                int64_t place = i * bits + bit;
                code |= (codes[place / 8] >> (place % 8) & 1) << bit;
            }
            int64_t group = i / group_size;
            weights[i] = static_cast<double>(scale_values[group]) * code + bias_values[group];
        }
        view = {codes.data(), scales.data(), biases.data(), type, rows, columns, group_size, bits};
    }

    static std::vector<float> fill(std::vector<char>& bytes, int64_t count, FloatType type) {
        std::vector<float> values(count);
        bytes.resize(count * (type == FloatType::float32 ? 4 : 2));
        for (int64_t i = 0; i < count; ++i) {
            if (type == FloatType::float32) {
                values[i] = std::uniform_real_distribution<float>(-0.1f, 0.1f)(random_bits());
                std::memcpy(bytes.data() + 4 * i, &values[i], 4);
            } else {
                Half half = random_half(type);
                values[i] = half.value;
                std::memcpy(bytes.data() + 2 * i, &half.bits, 2);
            }
        }
        return values;
    }

    std::vector<uint8_t> codes;
    std::vector<char> scales;
    std::vector<char> biases;
    std::vector<double> weights;
    QuantizedMatrix view;
};

/// The largest error of any output, as a part of what its products add up to without their signs.
double error_of(const Input& x, const Matrix& matrix, const std::vector<float>& y) {
    double worst = 0;
    int64_t outputs = matrix.view.rows;
    int64_t columns = matrix.view.columns;
    for (size_t row = 0; row < x.offsets.size(); ++row) {
        for (int64_t n = 0; n < outputs; ++n) {
            double sum = 0;
            double size = 1e-30;
            for (int64_t k = 0; k < columns; ++k) {
                double product = x.values[x.offsets[row] + k * x.step] * matrix.weights[n * columns + k];
                sum += product;
                size += std::fabs(product);
            }
            worst = std::fmax(worst, std::fabs(y[row * outputs + n] - sum) / size);
        }
    }
    return worst;
}

std::string name_of(const Matrix& matrix, size_t num_rows) {
    const QuantizedMatrix& view = matrix.view;
    return std::string(pomona::instructions().name) + ", " + std::to_string(view.bits) + " bits, groups of " +
           std::to_string(view.group_size) + ", " + std::to_string(num_rows) + " x " + std::to_string(view.columns) +
           " x " + std::to_string(view.rows);
}

void check_products() {
    for (int bits : kBits) {
        for (int group_size : kGroups) {
            for (FloatType type : kScaleTypes) {
                int64_t columns = group_size * (1 + random_below(2 * 768 / group_size + 3));
                Matrix matrix(1 + random_below(40), columns, group_size, bits, type);
                Input x(1 + random_below(12), columns, 1 + random_below(2));
                std::vector<float> y(x.offsets.size() * matrix.view.rows, NAN);
                pomona::multiply(x.rows(), {matrix.view}, {y.data()});
                double error = error_of(x, matrix, y);
                expect(error < kTolerance, name_of(matrix, x.offsets.size()) + ": error " + std::to_string(error));
            }
        }
    }
}

void check_empty_products() {
    Matrix no_outputs(0, 64, 32, 4, FloatType::float32);
    Matrix no_columns(3, 0, 32, 4, FloatType::float32);
    Matrix plain(3, 64, 32, 4, FloatType::float32);
    pomona::multiply(Input(2, 64, 1).rows(), {no_outputs.view}, {nullptr});
    pomona::multiply(Input(0, 64, 1).rows(), {plain.view}, {nullptr});
    std::vector<float> y(6, NAN);
    pomona::multiply(Input(2, 0, 1).rows(), {no_columns.view}, {y.data()});
    expect(y == std::vector<float>(6, 0.0f), "a product without columns is zero");
}

/// Every row has the bits that it has alone, whatever the number of rows and threads.
void check_rows_are_independent() {
    constexpr int kRows = 300;
    for (int bits : kBits) {
        Matrix matrix(31, 64 * (10 + random_below(10)), 64, bits, FloatType::float16);
        Input x(kRows, matrix.view.columns, 1);
        int64_t outputs = matrix.view.rows;
        std::vector<float> alone(kRows * outputs);
        for (int row = 0; row < kRows; ++row) {
            Rows one{x.values.data(), {x.offsets[row]}, 1};
            pomona::multiply(one, {matrix.view}, {alone.data() + row * outputs});
        }
        for (int count : {1, 2, 3, 4, 5, 6, 7, 16, 127, 128, 129, 131, 299, 300}) {
            int begin = random_below(kRows - count + 1);
            Rows some{x.values.data(), {x.offsets.begin() + begin, x.offsets.begin() + begin + count}, 1};
            std::vector<float> y(count * outputs, NAN);
            pomona::Pool::shared().resize(1 + random_below(4));
            pomona::multiply(some, {matrix.view}, {y.data()});
            bool equal = std::memcmp(y.data(), alone.data() + begin * outputs, y.size() * sizeof(float)) == 0;
            expect(equal, name_of(matrix, count) + ": rows differ from those multiplied alone");
        }
    }
}

void check_chosen_matrices() {
    constexpr int kMatrices = 5;
    constexpr int64_t kOutputs = 19;
    for (int bits : kBits) {
        Matrix all(kMatrices * kOutputs, 96, 32, bits, FloatType::bfloat16);
        QuantizedMatrix first = all.view;
        first.rows = kOutputs;
        Input x(70, 96, 1);
        std::vector<int64_t> choices;
        for (size_t i = 0; i < x.offsets.size(); ++i) {
            choices.push_back(random_below(kMatrices));
        }
        choices[3] = kMatrices;  // is not there
        std::vector<float> whole(x.offsets.size() * all.view.rows);
        std::vector<float> y(x.offsets.size() * kOutputs, 0.0f);
        pomona::multiply(x.rows(), {all.view}, {whole.data()});
        pomona::multiply_chosen(x.rows(), first, {choices, kMatrices}, y.data());
        for (size_t row = 0; row < x.offsets.size(); ++row) {
            std::vector<float> expected(kOutputs, 0.0f);
            if (choices[row] < kMatrices) {
                std::memcpy(expected.data(),
                            whole.data() + row * all.view.rows + choices[row] * kOutputs,
                            kOutputs * sizeof(float));
            }
            bool equal = std::memcmp(expected.data(), y.data() + row * kOutputs, kOutputs * sizeof(float)) == 0;
            expect(equal, name_of(all, row) + ": a row differs from its matrix's");
        }
    }
}

void check_expanded_rows() {
    for (int bits : kBits) {
        for (FloatType type : kScaleTypes) {
            Matrix matrix(9, 1024, 64, bits, type);
            std::vector<int64_t> indices = {8, 0, 3, 3};
            std::vector<float> values(indices.size() * 1024);
            pomona::expand_rows(matrix.view, indices, values.data());
            double worst = 0;
            for (size_t i = 0; i < values.size(); ++i) {
                double weight = matrix.weights[indices[i / 1024] * 1024 + i % 1024];
                worst = std::fmax(worst, std::fabs(values[i] - weight));
            }
            expect(worst < kTolerance, name_of(matrix, indices.size()) + ": expanded rows differ");
        }
    }
}

/// Two matrices at once, and what joins their products.
void check_joined_products() {
    for (int bits : kBits) {
        Matrix gate(45, 832, 64, bits, FloatType::float16);
        Matrix up(45, 832, 64, bits, FloatType::float16);
        Input x(131, 832, 1);
        size_t size = x.offsets.size() * 45;
        std::vector<float> gates(size), ups(size), gates_alone(size), expected(size), joined(size);
        pomona::multiply(x.rows(), {gate.view, up.view}, {gates.data(), ups.data()});
        pomona::multiply(x.rows(), {gate.view}, {gates_alone.data()});
        expect(gates == gates_alone, name_of(gate, 131) + ": a product beside another differs");
        Input addend(131, 45, 1 + random_below(2));
        for (size_t i = 0; i < size; ++i) {
            expected[i] = gates[i] + addend.values[i * addend.step];
        }
        pomona::multiply_and_add(x.rows(), gate.view, addend.rows(), joined.data());
        expect(joined == expected, name_of(gate, 131) + ": a product with an addend differs from their sum");
        pomona::join_swiglu({gates.data(), {0}, 1}, {ups.data(), {0}, 1}, static_cast<int64_t>(size), expected.data());
        pomona::multiply_swiglu(x.rows(), gate.view, up.view, joined.data());
        expect(joined == expected, name_of(gate, 131) + ": joined products differ from products that are joined");
        double worst = 0;
        for (size_t i = 0; i < size; ++i) {
            double exact = gates[i] / (1 + std::exp(-static_cast<double>(gates[i]))) * ups[i];
            worst = std::fmax(worst, std::fabs(joined[i] - exact) / (std::fabs(exact) + 1e-25));
        }
        expect(worst < kTolerance, name_of(gate, 131) + ": swiglu is off by " + std::to_string(worst));
    }
}

void check_blended_rows() {
    for (int width : {1, 7, 16, 33, 130}) {
        Input gate(5, width, 2);
        Input up(5, width, 1);
        std::vector<float> joined(5 * width), bounded(5 * width), product(5 * width), copy(5 * width);
        pomona::join_geglu(gate.rows(), up.rows(), width, joined.data());
        pomona::bound_softly(gate.rows(), 3.0f, width, bounded.data());
        pomona::multiply_rows(gate.rows(), up.rows(), width, product.data());
        pomona::copy_rows(gate.rows(), width, copy.data());
        double worst = 0;
        for (int row = 0; row < 5; ++row) {
            for (int i = 0; i < width; ++i) {
                double x = gate.values[gate.offsets[row] + 2 * i];
                float factor = up.values[up.offsets[row] + i];
                double gelu = x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) / 2;
                int place = row * width + i;
                worst = std::fmax(worst, std::fabs(joined[place] - gelu * factor));
                worst = std::fmax(worst, std::fabs(bounded[place] - 3 * std::tanh(x / 3)));
                expect(copy[place] == static_cast<float>(x), "a copied element differs");
                expect(product[place] == static_cast<float>(x) * factor, "a product of elements differs");
            }
        }
        expect(worst < kTolerance, "blended rows of " + std::to_string(width) + " are off by " + std::to_string(worst));
    }
}

void check_normalized_and_rotated_rows() {
    for (int width : {2, 7, 16, 30, 64, 130}) {
        Input x(5, width, 2);
        std::vector<float> weight(width), y(5 * width);
        for (float& value : weight) {
            value = std::normal_distribution<float>()(random_bits());
        }
        pomona::normalize(x.rows(), weight.data(), 1e-5f, width, y.data());
        int half = width / 2;
        Input angles(5, half, 1);
        std::vector<float> turned(5 * width);
        std::vector<float> turned_neighbours(5 * width);
        pomona::rotate(x.rows(), angles.rows(), angles.rows(), {half, false}, width, turned.data());
        pomona::rotate(x.rows(), angles.rows(), angles.rows(), {half, true}, width, turned_neighbours.data());
        double worst = 0;
        for (int row = 0; row < 5; ++row) {
            auto value = [&](int i) { return static_cast<double>(x.values[x.offsets[row] + 2 * i]); };
            auto angle = [&](int i) { return static_cast<double>(angles.values[angles.offsets[row] + i]); };
            double squares = 0;
            for (int i = 0; i < width; ++i) {
                squares += value(i) * value(i);
            }
            for (int i = 0; i < width; ++i) {
                double exact = value(i) / std::sqrt(squares / width + 1e-5) * weight[i];
                worst = std::fmax(worst, std::fabs(y[row * width + i] - exact));
                double right = i < half       ? value(i) * angle(i) - value(i + half) * angle(i)
                               : i < 2 * half ? value(i) * angle(i - half) + value(i - half) * angle(i - half)
                                              : value(i);
                worst = std::fmax(worst, std::fabs(turned[row * width + i] - right));
                int sign = i % 2 == 0 ? -1 : 1;
                double pair = i < 2 * half ? value(i) * angle(i / 2) + sign * value(i ^ 1) * angle(i / 2) : value(i);
                worst = std::fmax(worst, std::fabs(turned_neighbours[row * width + i] - pair));
            }
        }
        expect(worst < kTolerance, "rows of " + std::to_string(width) + " are off by " + std::to_string(worst));
    }
}

void check_pool() {
    for (int num_threads : {1, 2, 3, 8}) {
        pomona::Pool pool(num_threads);
        for (int job = 0; job < 2000; ++job) {
            int pieces = random_below(20);
            std::vector<int> done(pieces, 0);
            pool.run(pieces, [&](int64_t piece) { ++done[piece]; });
            expect(done == std::vector<int>(pieces, 1), "every piece is done once");
        }
    }
}

void check_callers_on_several_threads() {
    Matrix matrix(64, 1024, 32, 4, FloatType::float32);
    Input x(7, 1024, 1);
    std::vector<float> expected(7 * 64);
    pomona::multiply(x.rows(), {matrix.view}, {expected.data()});
    pomona::Pool::shared().resize(3);
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                std::vector<float> y(7 * 64);
                pomona::multiply(x.rows(), {matrix.view}, {y.data()});
                expect(y == expected, "a product is the same beside others");
            }
        });
    }
    for (std::thread& caller : callers) {
        caller.join();
    }
}

/// Neither the sanitizer for threads nor an emulator of another processor lets a forked child start threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kCanFork = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif
#else
constexpr bool kCanFork = true;
#endif

/// A forked child has a pool of its own.
void check_fork() {
    std::fflush(stdout);
    pid_t child = ::fork();
    if (child == 0) {
        int64_t total = 0;
        std::vector<int64_t> parts(100, 0);
        pomona::Pool::shared().run(100, [&](int64_t piece) { parts[piece] = piece; });
        for (int64_t part : parts) {
            total += part;
        }
        ::_exit(total == 4950 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child computes");
}

}  // namespace

int main(int argc, char** argv) {
    bool may_fork = kCanFork && (argc < 2 || std::strcmp(argv[1], "--no-fork") != 0);
    check_pool();
    for (const pomona::Instructions* instructions : pomona::available_instructions()) {
        std::printf("%s\n", instructions->name);
        pomona::choose_instructions(instructions->name);
        check_products();
        check_empty_products();
        check_rows_are_independent();
        check_chosen_matrices();
        check_expanded_rows();
        check_joined_products();
        check_normalized_and_rotated_rows();
        check_blended_rows();
        check_callers_on_several_threads();
    }
    if (may_fork) {
        check_fork();
    }
    return summary();
}
