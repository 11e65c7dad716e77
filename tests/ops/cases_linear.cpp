// Cases of the three linears.
#include <cmath>
#include <fmt/format.h>

#include "harness.h"
#include "reference.h"
#include "tensor_core.h"

namespace gptrain::ops_test::cases_linear {
namespace {

struct Shape {
  int64_t rows, in, out;
};

// Sizes of one, primes, sizes around multiples of vector and tile widths, and one long sum.
const Shape shapes[] = {{1, 1, 1},    {1, 7, 5},    {2, 1, 3},     {5, 3, 1},      {17, 31, 13},
                        {64, 64, 64}, {65, 63, 66}, {127, 96, 80}, {33, 129, 257}, {1100, 48, 32}};

// Products that AMX tiles compute in several blocks and in two chunks of the depth, with parts of tiles on every side.
const Shape block_shapes[] = {{515, 1031, 35}, {1030, 70, 161}, {130, 33, 1100}};

struct Types {
  DType compute;
  DType y;
};
const Types types[] = {{DType::f32, DType::f32},
                       {DType::bf16, DType::bf16},
                       {DType::bf16, DType::f32},
                       {DType::f16, DType::f16},
                       {DType::f16, DType::f32}};

// c [rows, cols] = start + sum over k of a(row, k) b(k, col), with every sum in Real.
template <typename Real, typename A, typename B>
std::vector<double> product(int64_t rows, int64_t cols, int64_t depth, const std::vector<double>& start, const A& a,
                            const B& b, DType dtype) {
  std::vector<double> c(start);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      auto sum = static_cast<Real>(0);
      for (int64_t k = 0; k < depth; ++k) sum += static_cast<Real>(a(row, k)) * static_cast<Real>(b(k, col));
      double& element = c[static_cast<size_t>(row * cols + col)];
      element = static_cast<double>(static_cast<Real>(element) + sum);
      if constexpr (std::is_same_v<Real, float>) element = rounded(element, dtype);
    }
  }
  return c;
}

// Returns the amount that a GPU's tensor cores may truncate, towards zero, from a sum of 16-bit products, 16 per step.
// Truncations do not cancel, so in f32 results of long sums they exceed the error of sums in float, which round to
// nearest.
double cut_off_by_steps(int64_t depth, const std::vector<double>& reference) {
  double squares = 0;
  for (const double value : reference) squares += value * value;
  const double rms = std::sqrt(squares / static_cast<double>(reference.size()));
  return static_cast<double>((depth + 15) / 16) * 0x1p-24 * rms;
}

// Compares with sums in double, within the error of sums in float, and for 16-bit operands that of a GPU.
template <typename A, typename B>
void expect_product(Trial& trial, std::string_view what, const Operand& actual, DType operands, int64_t depth,
                    const std::vector<double>& start, const A& a, const B& b) {
  const Matrix c = actual.matrix();
  const std::vector<double> reference = product<double>(c.rows, c.cols, depth, start, a, b, c.dtype);
  const bool on_tensor_cores = trial.backend().target().kind == Target::Kind::gpu && dtype_bytes(operands) == 2;
  const double noise = on_tensor_cores && c.dtype == DType::f32 ? cut_off_by_steps(depth, reference) : 0;
  trial.expect_close(what, actual, reference, product<float>(c.rows, c.cols, depth, start, a, b, c.dtype), 3, noise);
}

std::vector<double> zeros(int64_t count) { return std::vector<double>(static_cast<size_t>(count)); }

void forward_case(Trial& trial, const Shape& shape, const Types& type, bool with_bias, int64_t gap) {
  const Operand& x = trial.input(type.compute, shape.rows, shape.in, 1, gap);
  const Operand& w = trial.input(type.compute, shape.out, shape.in, 0.2, gap);
  const Operand& bias = trial.input(type.compute, 1, shape.out);
  Operand& y = trial.output(type.y, shape.rows, shape.out, gap);
  trial.run(
      LinearForward{.x = x.matrix(), .w = w.matrix(), .bias = with_bias ? bias.matrix() : Matrix(), .y = y.matrix()});
  std::vector<double> start = zeros(shape.rows * shape.out);
  for (size_t i = 0; i < start.size() && with_bias; ++i) start[i] = bias.at(0, static_cast<int64_t>(i) % shape.out);
  expect_product(
      trial, "y", y, type.compute, shape.in, start, [&](int64_t n, int64_t k) { return x.at(n, k); },
      [&](int64_t k, int64_t o) { return w.at(o, k); });
}

void backward_input_case(Trial& trial, const Shape& shape, DType dtype, int64_t gap) {
  const Operand& dy = trial.input(dtype, shape.rows, shape.out, 1, gap);
  const Operand& w = trial.input(dtype, shape.out, shape.in, 0.2, gap);
  Operand& dx = trial.output(dtype, shape.rows, shape.in, gap);
  trial.run(LinearBackwardInput{dy.matrix(), w.matrix(), dx.matrix()});
  expect_product(
      trial, "dx", dx, dtype, shape.out, zeros(shape.rows * shape.in),
      [&](int64_t n, int64_t o) { return dy.at(n, o); }, [&](int64_t o, int64_t i) { return w.at(o, i); });
}

void backward_weight_case(Trial& trial, const Shape& shape, DType dtype, bool with_bias, bool accumulate, int64_t gap) {
  const Operand& x = trial.input(dtype, shape.rows, shape.in, 1, gap);
  const Operand& dy = trial.input(dtype, shape.rows, shape.out, 1, gap);
  Operand& dw = accumulate ? trial.in_out(DType::f32, shape.out, shape.in, 1, gap)
                           : trial.output(DType::f32, shape.out, shape.in, gap);
  Operand& d_bias = accumulate ? trial.in_out(DType::f32, 1, shape.out) : trial.output(DType::f32, 1, shape.out);
  const std::vector<double> dw_before = accumulate ? dw.values() : zeros(shape.out * shape.in);
  const std::vector<double> d_bias_before = accumulate ? d_bias.values() : zeros(shape.out);
  trial.run(LinearBackwardWeight{.x = x.matrix(),
                                 .dy = dy.matrix(),
                                 .dw = dw.matrix(),
                                 .d_bias = with_bias ? d_bias.matrix() : Matrix(),
                                 .accumulate = accumulate});
  expect_product(
      trial, "dw", dw, dtype, shape.rows, dw_before, [&](int64_t o, int64_t n) { return dy.at(n, o); },
      [&](int64_t n, int64_t i) { return x.at(n, i); });
  if (!with_bias) return;
  expect_product(
      trial, "d_bias", d_bias, dtype, shape.rows, d_bias_before, [](int64_t, int64_t) { return 1.0; },
      [&](int64_t n, int64_t o) { return dy.at(n, o); });
}

// Checks the same with dw as tensor cores would compute it; the host harness rounds to nearest.
void tensor_core_case(Trial& trial, const Shape& shape, DType dtype) {
  if (trial.backend().target().kind != Target::Kind::gpu) return;
  const Operand& x = trial.input(dtype, shape.rows, shape.in);
  const Operand& dy = trial.input(dtype, shape.rows, shape.out);
  Operand& dw = trial.output(DType::f32, shape.out, shape.in);
  for (int64_t o = 0; o < shape.out; ++o) {
    for (int64_t i = 0; i < shape.in; ++i) {
      dw.set(o, i,
             static_cast<double>(testing::tensor_core_sum(
                 testing::tensor_core_16_bit, shape.rows, [&](int64_t n) { return dy.at(n, o); },
                 [&](int64_t n) { return x.at(n, i); })));
    }
  }
  expect_product(
      trial, "dw", dw, dtype, shape.rows, zeros(shape.out * shape.in),
      [&](int64_t o, int64_t n) { return dy.at(n, o); }, [&](int64_t n, int64_t i) { return x.at(n, i); });
}

// Checks that the pre-activation is the product, and y the activation of it, before or after rounding.
void activated_forward_case(Trial& trial, const Shape& shape, DType dtype, bool with_bias, int64_t gap) {
  const Operand& x = trial.input(dtype, shape.rows, shape.in, 1, gap);
  const Operand& w = trial.input(dtype, shape.out, shape.in, 0.2, gap);
  const Operand& bias = trial.input(dtype, 1, shape.out);
  Operand& y = trial.output(dtype, shape.rows, shape.out, gap);
  Operand& pre_activation = trial.output(dtype, shape.rows, shape.out, gap);
  trial.run(LinearForward{.x = x.matrix(),
                          .w = w.matrix(),
                          .bias = with_bias ? bias.matrix() : Matrix(),
                          .y = y.matrix(),
                          .pre_activation = pre_activation.matrix()});
  std::vector<double> start = zeros(shape.rows * shape.out);
  for (size_t i = 0; i < start.size() && with_bias; ++i) start[i] = bias.at(0, static_cast<int64_t>(i) % shape.out);
  const auto left = [&](int64_t n, int64_t k) { return x.at(n, k); };
  const auto right = [&](int64_t k, int64_t o) { return w.at(o, k); };
  expect_product(trial, "pre_activation", pre_activation, dtype, shape.in, start, left, right);
  std::vector<double> expected = product<double>(shape.rows, shape.out, shape.in, start, left, right, dtype);
  std::vector<double> plain = product<float>(shape.rows, shape.out, shape.in, start, left, right, dtype);
  for (double& value : expected) value = gelu_tanh(value);
  for (double& value : plain) value = rounded(static_cast<double>(gelu_tanh(static_cast<float>(value))), dtype);
  trial.expect_close("y", y, expected, plain);
}

void activated_backward_case(Trial& trial, const Shape& shape, DType dtype, int64_t gap) {
  const Operand& dy = trial.input(dtype, shape.rows, shape.out, 1, gap);
  const Operand& w = trial.input(dtype, shape.out, shape.in, 0.2, gap);
  const Operand& pre_activation = trial.input(dtype, shape.rows, shape.in, 1, gap);
  Operand& dx = trial.output(dtype, shape.rows, shape.in, gap);
  trial.run(LinearBackwardInput{
      .dy = dy.matrix(), .w = w.matrix(), .dx = dx.matrix(), .pre_activation = pre_activation.matrix()});
  const auto left = [&](int64_t n, int64_t o) { return dy.at(n, o); };
  const auto right = [&](int64_t o, int64_t i) { return w.at(o, i); };
  const std::vector<double> start = zeros(shape.rows * shape.in);
  std::vector<double> expected = product<double>(shape.rows, shape.in, shape.out, start, left, right, dtype);
  std::vector<double> plain = product<float>(shape.rows, shape.in, shape.out, start, left, right, dtype);
  const std::vector<double> at = pre_activation.values();
  for (size_t i = 0; i < at.size(); ++i) {
    expected[i] *= gelu_tanh_slope(at[i]);
    const float slope = gelu_tanh_slope(static_cast<float>(at[i]));
    plain[i] = rounded(static_cast<double>(static_cast<float>(plain[i]) * slope), dtype);
  }
  trial.expect_close("dx", dx, expected, plain);
}

void activation_rejections(Trial& trial) {
  const Operand& x = trial.input(DType::bf16, 3, 8);
  const Operand& w = trial.input(DType::bf16, 8, 8);
  Operand& y = trial.output(DType::bf16, 3, 8);
  Operand& wide = trial.output(DType::f32, 3, 8);
  LinearForward op{.x = x.matrix(), .w = w.matrix(), .bias = {}, .y = y.matrix(), .pre_activation = y.matrix()};
  trial.expect_rejected(op, "the pre-activation is y");
  op.pre_activation = x.matrix().row_range(0, 2);
  trial.expect_rejected(op, "a pre-activation of other rows");
  op = {.x = x.matrix(), .w = w.matrix(), .bias = {}, .y = wide.matrix(), .pre_activation = y.matrix()};
  trial.expect_rejected(op, "y is not as x is");
  trial.expect_rejected(
      LinearBackwardInput{.dy = x.matrix(), .w = w.matrix(), .dx = y.matrix(), .pre_activation = y.matrix()},
      "the pre-activation is dx");
}

// Compares the gradients with central differences of y in double, which are exact for a linear function up to rounding.
void derivative_case(Trial& trial) {
  constexpr int64_t rows = 5, in = 7, out = 3;
  const Operand& x = trial.input(DType::f32, rows, in);
  const Operand& w = trial.input(DType::f32, out, in);
  const Operand& dy = trial.input(DType::f32, rows, out);
  Operand& dx = trial.output(DType::f32, rows, in);
  Operand& dw = trial.output(DType::f32, out, in);
  trial.run(LinearBackwardInput{dy.matrix(), w.matrix(), dx.matrix()});
  trial.run(LinearBackwardWeight{
      .x = x.matrix(), .dy = dy.matrix(), .dw = dw.matrix(), .d_bias = Matrix(), .accumulate = false});
  std::vector<double> x_values = x.values(), w_values = w.values();
  const auto loss = [&] {
    double sum = 0;
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i)
          sum += dy.at(n, o) * x_values[static_cast<size_t>(n * in + i)] * w_values[static_cast<size_t>(o * in + i)];
    return sum;
  };
  const auto differences = [&](std::vector<double>& values) {
    constexpr double step = 1e-3;
    std::vector<double> result;
    for (double& value : values) {
      const double before = value;
      value = before + step;
      const double up = loss();
      value = before - step;
      const double down = loss();
      value = before;
      result.push_back((up - down) / (2 * step));
    }
    return result;
  };
  constexpr double bound = 1e-5;  // seven products of numbers of size one, in float
  trial.expect_near("dx", dx, differences(x_values), bound);
  trial.expect_near("dw", dw, differences(w_values), bound);
}

// A sum so long, on so many threads, that oneDNN needs a copy of dw for each and the CPU backend cuts the sum into
// slices. Small integers make every order of summing exact.
void long_sum_case(Trial& trial, bool accumulate) {
  constexpr int64_t rows = 2100, in = 768, out = 3072;
  const std::unique_ptr<Backend> backend = make_cpu_backend(16);
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  const auto upload = [&](std::vector<float>& values, const auto& next) {
    for (float& value : values) value = next();
    memory.push_back(backend->allocate(static_cast<int64_t>(values.size() * sizeof(float))));
    backend->upload(memory.back()->data(), values.data(), memory.back()->bytes());
    return memory.back()->data();
  };
  const auto small_integer = [&] { return static_cast<float>(trial.random.below(7) - 3); };
  std::vector<float> x(rows * in), dy(rows * out), dw(out * in);
  LinearBackwardWeight op{};
  op.x = Matrix(upload(x, small_integer), DType::f32, rows, in);
  op.dy = Matrix(upload(dy, small_integer), DType::f32, rows, out);
  op.dw = Matrix(upload(dw, [] { return 1.0F; }), DType::f32, out, in);
  op.accumulate = accumulate;
  const int64_t scratch_bytes = footprint(op, backend->target()).scratch_bytes;
  const auto scratch = backend->allocate(scratch_bytes);
  backend->set_scratch(scratch->data(), scratch_bytes);
  backend->run(op);
  backend->download(dw.data(), op.dw.data, op.dw.bytes());
  for (int sample = 0; sample < 500; ++sample) {
    const int64_t o = trial.random.below(out), i = trial.random.below(in);
    double expected = accumulate ? 1 : 0;
    for (int64_t n = 0; n < rows; ++n) {
      expected += static_cast<double>(x[static_cast<size_t>(n * in + i)]) * dy[static_cast<size_t>(n * out + o)];
    }
    const double actual = dw[static_cast<size_t>(o * in + i)];
    if (actual == expected) continue;
    return trial.fail(fmt::format("dw({}, {}) is {}, must be {}", o, i, actual, expected));
  }
}

// Checks that packed weights give the op's result. Small integers make every order of summing exact.
void packed_case(Trial& trial, DType dtype) {
  constexpr int64_t rows = 65, in = 96, out = 80;
  const auto small_integers = [&](int64_t r, int64_t c) -> const Operand& {
    std::vector<double> values(static_cast<size_t>(r * c));
    for (double& value : values) value = static_cast<double>(trial.random.below(5) - 2);
    return trial.input(dtype, r, c, values);
  };
  const Operand &x = small_integers(rows, in), &w = small_integers(out, in), &bias = small_integers(1, out);
  Operand& y = trial.output(DType::f32, rows, out);
  LinearForward op{.x = x.matrix(), .w = w.matrix(), .bias = bias.matrix(), .y = y.matrix()};
  trial.run(op);

  Backend& backend = trial.backend();
  std::vector<float> result(rows * out);
  const auto memory = backend.allocate(op.y.bytes());
  op.y.data = memory->data();
  const int64_t scratch_bytes = footprint(op, backend.target()).scratch_bytes;
  const auto scratch = backend.allocate(scratch_bytes);
  backend.set_scratch(scratch->data(), scratch_bytes);
  int64_t packed_bytes = 0;
  const auto packed = backend.pack(op, [&](int64_t bytes) {
    packed_bytes = bytes;
    return backend.allocate(bytes);
  });
  if (packed == nullptr) {  // the library serves no bf16 without AVX512-BF16, and is not asked on a GPU
    return trial.expect_true(backend.target().kind == Target::Kind::gpu || dtype == DType::bf16, "packed weights");
  }
  packed->run();
  backend.download(result.data(), op.y.data, op.y.bytes());
  trial.expect_true(packed_bytes >= op.w.bytes(), "memory for the packed weights");
  trial.expect_true(y.values() == std::vector<double>(result.begin(), result.end()), "y as with plain weights");
}

std::string describe(const Shape& shape, std::string_view dtypes, std::string_view rest) {
  return fmt::format("N={} in={} out={} {}{}", shape.rows, shape.in, shape.out, dtypes, rest);
}

std::string dtype_names(const Types& type) {
  return fmt::format("{} to {}", dtype_name(type.compute), dtype_name(type.y));
}

// Blocks are the CPU backend's own: a GPU meets nothing new in these shapes, and its kernels take long on the host.
void require_blocks(Trial& trial) {
  if (trial.backend().target().kind == Target::Kind::gpu) throw NotOnThisBackend{"products in blocks"};
}

void add_block_cases(Suite& suite) {
  for (const Shape& shape : block_shapes) {
    const bool accumulate = shape.in % 2 == 0;
    const int64_t gap = accumulate ? 3 : 0;
    suite.add<LinearForward>(describe(shape, "bf16 to bf16", " in blocks, bias"), [=](Trial& trial) {
      require_blocks(trial);
      forward_case(trial, shape, {DType::bf16, DType::bf16}, true, gap);
    });
    suite.add<LinearBackwardInput>(describe(shape, "bf16", " in blocks"), [=](Trial& trial) {
      require_blocks(trial);
      backward_input_case(trial, shape, DType::bf16, gap);
    });
    suite.add<LinearBackwardWeight>(describe(shape, "bf16", " in blocks"), [=](Trial& trial) {
      require_blocks(trial);
      backward_weight_case(trial, shape, DType::bf16, accumulate, accumulate, gap);
    });
  }
}

void add_cases(Suite& suite) {
  for (const Shape& shape : shapes) {
    for (const int64_t gap : {0, 3}) {
      const std::string_view strided = gap > 0 ? " strided" : "";
      for (const Types& type : types) {
        if (is_left_out(type.compute, &shape - shapes)) continue;
        for (const bool bias : {false, true}) {
          suite.add<LinearForward>(
              describe(shape, dtype_names(type), fmt::format("{}{}", bias ? " bias" : "", strided)),
              [=](Trial& trial) { forward_case(trial, shape, type, bias, gap); });
        }
      }
      for (const DType dtype : compute_dtypes) {
        if (is_left_out(dtype, &shape - shapes)) continue;
        suite.add<LinearBackwardInput>(describe(shape, dtype_name(dtype), strided),
                                       [=](Trial& trial) { backward_input_case(trial, shape, dtype, gap); });
        for (const bool accumulate : {false, true}) {
          const bool bias = accumulate == (gap == 0);  // each option with and without the other
          suite.add<LinearBackwardWeight>(
              describe(shape, dtype_name(dtype),
                       fmt::format("{}{}{}", bias ? " bias" : "", accumulate ? " accumulate" : "", strided)),
              [=](Trial& trial) { backward_weight_case(trial, shape, dtype, bias, accumulate, gap); });
        }
      }
    }
  }
  add_block_cases(suite);
  // A shape at which the bias gradient is summed apart from the weight gradient: to overwrite, and to add.
  for (const bool accumulate : {false, true}) {
    suite.add<LinearBackwardWeight>(fmt::format("N=37 in=2 out=1031 bf16 bias{}", accumulate ? " accumulate" : ""),
                                    [=](Trial& trial) {
                                      backward_weight_case(trial, {37, 2, 1031}, DType::bf16, true, accumulate, 0);
                                    });
  }
  // Shapes for which a library has the activation in its epilogue, and others: odd widths, f32.
  for (const Shape& shape : {Shape{2, 1, 3}, Shape{65, 63, 66}, Shape{64, 64, 64}, Shape{127, 96, 80}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int64_t gap : {0, 8}) {
        const bool bias = (gap == 0) == (dtype == DType::bf16);
        const std::string_view strided = gap > 0 ? " gelu_tanh strided" : " gelu_tanh";
        suite.add<LinearForward>(describe(shape, dtype_name(dtype), fmt::format("{}{}", strided, bias ? " bias" : "")),
                                 [=](Trial& trial) { activated_forward_case(trial, shape, dtype, bias, gap); });
        suite.add<LinearBackwardInput>(describe(shape, dtype_name(dtype), strided),
                                       [=](Trial& trial) { activated_backward_case(trial, shape, dtype, gap); });
      }
    }
  }
  suite.add<LinearForward>("gelu_tanh rejections", activation_rejections);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    suite.add<LinearForward>(fmt::format("packed weights {}", dtype_name(dtype)),
                             [=](Trial& trial) { packed_case(trial, dtype); });
  }
  suite.add<LinearBackwardWeight>("N=5 in=7 out=3 f32 central differences", derivative_case);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    suite.add<LinearBackwardWeight>(describe({1100, 48, 32}, dtype_name(dtype), " as tensor cores sum"),
                                    [=](Trial& trial) {
                                      tensor_core_case(trial, {1100, 48, 32}, dtype);
                                    });
  }
  for (const bool accumulate : {false, true}) {
    suite.add<LinearBackwardWeight>(
        fmt::format("N=2100 in=768 out=3072 f32{} on 16 threads", accumulate ? " accumulate" : ""),
        [=](Trial& trial) { long_sum_case(trial, accumulate); });
  }
}

// The linears of a GPT-2 124M block at 1,024 tokens.
void add_benches(Suite& suite) {
  for (const Shape& shape : {Shape{1024, 768, 2304}, Shape{1024, 768, 768}, Shape{1024, 768, 3072},
                             Shape{1024, 3072, 768}, Shape{8192, 768, 3072}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::string description = describe(shape, dtype_name(dtype), "");
      suite.add_bench<LinearForward>(description, [=](Trial& trial) {
        const Operand& x = trial.input(dtype, shape.rows, shape.in);
        const Operand& w = trial.input(dtype, shape.out, shape.in);
        const Operand& bias = trial.input(dtype, 1, shape.out);
        Operand& y = trial.output(dtype, shape.rows, shape.out);
        trial.time(LinearForward{.x = x.matrix(), .w = w.matrix(), .bias = bias.matrix(), .y = y.matrix()});
      });
      suite.add_bench<LinearBackwardInput>(description, [=](Trial& trial) {
        const Operand& dy = trial.input(dtype, shape.rows, shape.out);
        const Operand& w = trial.input(dtype, shape.out, shape.in);
        Operand& dx = trial.output(dtype, shape.rows, shape.in);
        trial.time(LinearBackwardInput{dy.matrix(), w.matrix(), dx.matrix()});
      });
      // With and without the bias gradient, to compare its cost in the product with a separate BiasGradient.
      for (const bool with_bias : {true, false}) {
        suite.add_bench<LinearBackwardWeight>(description + (with_bias ? "" : " no bias"), [=](Trial& trial) {
          const Operand& x = trial.input(dtype, shape.rows, shape.in);
          const Operand& dy = trial.input(dtype, shape.rows, shape.out);
          Operand& dw = trial.in_out(DType::f32, shape.out, shape.in);
          const Matrix d_bias = with_bias ? trial.in_out(DType::f32, 1, shape.out).matrix() : Matrix();
          trial.time(LinearBackwardWeight{
              .x = x.matrix(), .dy = dy.matrix(), .dw = dw.matrix(), .d_bias = d_bias, .accumulate = true});
        });
      }
    }
  }
}

// The products around the activation of a GPT-2 124M block at 8,192 tokens.
void add_activated_benches(Suite& suite) {
  constexpr int64_t rows = 8192, narrow = 768, wide = 3072;
  const std::string_view dtype_and_activation = "bf16 gelu_tanh";
  suite.add_bench<LinearForward>(describe({rows, narrow, wide}, dtype_and_activation, ""), [=](Trial& trial) {
    trial.time(LinearForward{.x = trial.input(DType::bf16, rows, narrow).matrix(),
                             .w = trial.input(DType::bf16, wide, narrow).matrix(),
                             .bias = trial.input(DType::bf16, 1, wide).matrix(),
                             .y = trial.output(DType::bf16, rows, wide).matrix(),
                             .pre_activation = trial.output(DType::bf16, rows, wide).matrix()});
  });
  suite.add_bench<LinearBackwardInput>(describe({rows, wide, narrow}, dtype_and_activation, ""), [=](Trial& trial) {
    trial.time(LinearBackwardInput{.dy = trial.input(DType::bf16, rows, narrow).matrix(),
                                   .w = trial.input(DType::bf16, narrow, wide).matrix(),
                                   .dx = trial.output(DType::bf16, rows, wide).matrix(),
                                   .pre_activation = trial.input(DType::bf16, rows, wide).matrix()});
  });
}

const Registration cases(add_cases);
const Registration activated_benches(add_activated_benches);
const Registration benches(add_benches);

}  // namespace
}  // namespace gptrain::ops_test::cases_linear
