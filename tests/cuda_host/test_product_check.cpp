// The check of chosen and recorded algorithms, with substitutes for a library's: right ones, wrong ones, and one that
// gives another result the second time.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/fp8.h"
#include "base/philox.h"
#include "catch.h"
#include "kernels/run.h"
#include "known_algorithms.h"
#include "product_check.h"
#include "tensor_core.h"

using namespace gptrain;

namespace {

const ProductCheck check(Stream{}, [](void* host, const void* device, int64_t bytes) {
  std::memcpy(host, device, static_cast<size_t>(bytes));
});

// A matrix and its memory.
struct Held {
  std::vector<std::byte> memory;
  Matrix matrix;

  Held(DType dtype, int64_t rows, int64_t cols, uint32_t seed, int64_t gap = 0)
      : memory(static_cast<size_t>(rows * (cols + gap) * dtype_bytes(dtype))),
        matrix(memory.data(), dtype, rows, cols, cols + gap) {
    for (int64_t i = 0; i < rows * (cols + gap); ++i) {
      const uint32_t word = philox({seed, 7}, {static_cast<uint32_t>(i), 0, 0, 0})[0];
      set(i, static_cast<float>(word % 1024) / 512.0F - 1);
    }
  }
  void set(int64_t index, float value) {
    if (matrix.dtype == DType::f32) matrix.as<float>()[index] = value;
    if (matrix.dtype == DType::bf16) matrix.as<bf16>()[index] = to_bf16(value);
    if (matrix.dtype == DType::f8e4m3) matrix.as<f8e4m3>()[index] = to_fp8<f8e4m3>(value);
    if (matrix.dtype == DType::f8e5m2) matrix.as<f8e5m2>()[index] = to_fp8<f8e5m2>(value);
  }
};

// Odd sizes, so that edge tiles are partial, and larger than the checked tiles.
constexpr int64_t rows = 520, cols = 470, depth = 70;

struct Operands {
  Held a, b, bias, c;
  alignas(8) std::byte scratch[product_check_bytes];
  Product product;

  explicit Operands(DType result = DType::bf16, bool accumulate = false)
      : a(DType::bf16, rows, depth, 1, 2),
        b(DType::bf16, cols, depth, 2),
        bias(DType::bf16, 1, cols, 3),
        c(result, rows, cols, 4, 5),
        product{
            .a = a.matrix, .b = b.matrix, .bias = {}, .c = c.matrix, .b_transposed = true, .accumulate = accumulate} {}

  std::string fault(const ExpectedProduct& expected, const std::function<void()>& run) {
    return check.fault(expected, Matrix(), run, scratch);
  }
  std::string fault(const std::function<void()>& run) { return fault({.product = product}, run); }
};

Product without_last(const Product& product, int64_t terms) {
  Product part = product;
  part.a = product.a.column_range(0, depth - terms);
  part.b = product.b.column_range(0, depth - terms);
  return part;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a sound algorithm has no fault", "[long]") {
  for (const DType result : {DType::bf16, DType::f32}) {
    for (const bool accumulate : {false, true}) {
      Operands operands(result, accumulate);
      CHECK(operands.fault([&] { cuda_run(operands.product, Stream{}); }).empty());
      operands.product.bias = operands.bias.matrix;
      CHECK(operands.fault([&] { cuda_run(operands.product, Stream{}); }).empty());
    }
  }
}

TEST_CASE("an algorithm that leaves out the end of the depth is found") {
  for (const DType result : {DType::bf16, DType::f32}) {
    for (const int64_t terms : {1, 22}) {
      if (result == DType::bf16 && terms == 1) continue;  // no more than rounding
      Operands operands(result, result == DType::f32);
      const std::string fault = operands.fault([&] { cuda_run(without_last(operands.product, terms), Stream{}); });
      CHECK(holds(fault, "times what rounding explains"));
    }
  }
}

TEST_CASE("an algorithm that is wrong in the last rows or columns only is found", "[long]") {
  for (const auto& [row, col] : {std::pair{rows - 1, int64_t{0}}, {int64_t{0}, cols - 1}, {rows - 1, cols - 1}}) {
    Operands operands;
    const auto run = [&, row = row, col = col] {
      cuda_run(operands.product, Stream{});
      operands.c.set(row * operands.c.matrix.stride + col, 300);
    };
    CHECK(holds(operands.fault(run), "times what rounding explains"));
  }
}

TEST_CASE("an algorithm that adds where it must not, or does not where it must, is found") {
  for (const bool accumulate : {false, true}) {
    Operands operands(DType::f32, accumulate);
    Product other = operands.product;
    other.accumulate = !accumulate;
    CHECK_FALSE(operands.fault([&] { cuda_run(other, Stream{}); }).empty());
  }
}

TEST_CASE("elements that an algorithm does not write are found, wherever they are", "[long]") {
  for (const int64_t row : {int64_t{0}, rows / 2 + 7, rows - 1}) {
    Operands operands;
    const auto run = [&] {
      std::vector<std::byte> before(operands.c.memory);
      cuda_run(operands.product, Stream{});
      const auto at = static_cast<size_t>((row * operands.c.matrix.stride + 13) * dtype_bytes(DType::bf16));
      std::memcpy(&operands.c.memory[at], &before[at], 3 * sizeof(bf16));
    };
    CHECK(operands.fault(run) == "it leaves 3 elements of the result as they were");
  }
}

TEST_CASE("an algorithm that answers differently the second time is found, wherever it does", "[long]") {
  for (const int64_t row : {int64_t{0}, rows / 2 + 7, rows - 1}) {
    Operands operands;
    int runs = 0;
    const auto run = [&] {
      cuda_run(operands.product, Stream{});
      bf16& element = operands.c.matrix.as<bf16>()[row * operands.c.matrix.stride + 13];
      if (++runs > 1) element.bits ^= 1;  // below any tolerance
    };
    CHECK(operands.fault(run) == "it gives other bits when it runs again");
    CHECK(runs == 2);
  }
}

TEST_CASE("products with an activation are checked with what they keep of it", "[long]") {
  Operands operands;
  operands.product.bias = operands.bias.matrix;
  Held pre_activation(DType::bf16, rows, cols, 5);
  Product product = operands.product;
  product.c = pre_activation.matrix;
  const ActivationForward activation{
      .kind = ActivationKind::gelu_tanh, .x = pre_activation.matrix, .bias = {}, .y = operands.c.matrix};
  const ExpectedProduct expected{
      .product = operands.product, .end = ProductEnd::gelu, .pre_activation = pre_activation.matrix};
  const auto sound = [&] {
    cuda_run(product, Stream{});
    cuda_run(activation, Stream{});
  };
  CHECK(operands.fault(expected, sound).empty());
  const auto without_bias = [&] {
    Product other = product;
    other.bias = {};
    cuda_run(other, Stream{});
    cuda_run(activation, Stream{});
  };
  CHECK(holds(operands.fault(expected, without_bias), "times what rounding explains"));
  const auto nothing_kept = [&] {
    sound();
    start_result(pre_activation.matrix, false, Stream{});
  };
  CHECK(holds(operands.fault(expected, nothing_kept), "as they were"));
}

TEST_CASE("products with an activation's gradient are checked") {
  Operands operands;
  const Held pre_activation(DType::bf16, rows, cols, 5);
  const ActivationBackward slope{.kind = ActivationKind::gelu_tanh,
                                 .x = pre_activation.matrix,
                                 .bias = {},
                                 .dy = operands.c.matrix,
                                 .dx = operands.c.matrix};
  const ExpectedProduct expected{
      .product = operands.product, .end = ProductEnd::gelu_slope, .pre_activation = pre_activation.matrix};
  CHECK(operands
            .fault(expected,
                   [&] {
                     cuda_run(operands.product, Stream{});
                     cuda_run(slope, Stream{});
                   })
            .empty());
  CHECK_FALSE(operands.fault(expected, [&] { cuda_run(operands.product, Stream{}); }).empty());
}

TEST_CASE("a bias gradient beside a weight's is checked") {
  const Held dy(DType::bf16, depth, rows, 1), x(DType::bf16, depth, cols, 2);
  Held dw(DType::f32, rows, cols, 3), d_bias(DType::f32, 1, rows, 4);
  const Product product{
      .a = dy.matrix, .b = x.matrix, .bias = {}, .c = dw.matrix, .a_transposed = true, .accumulate = true};
  alignas(8) static std::byte scratch[product_check_bytes];
  int64_t rows_to_sum = depth;
  const auto run = [&] {
    cuda_run(product, Stream{});
    for (int64_t column = 0; column < rows; ++column) {
      float sum = 0;
      for (int64_t row = 0; row < rows_to_sum; ++row) sum += to_float(dy.matrix.as<bf16>()[row * rows + column]);
      d_bias.set(column, sum);
    }
  };
  CHECK(check.fault({.product = product}, d_bias.matrix, run, scratch).empty());
  --rows_to_sum;
  CHECK(holds(check.fault({.product = product}, d_bias.matrix, run, scratch), "times what rounding explains"));
}

TEST_CASE("FP8 products are checked with their scales", "[long]") {
  const Held a(DType::f8e5m2, rows, depth, 1), b(DType::f8e4m3, cols, depth, 2);
  Held c(DType::f32, rows, cols, 3);
  const float a_scale = 0.5F, b_scale = 3;
  alignas(8) static std::byte scratch[product_check_bytes];
  const ExpectedProduct expected{
      .product = {.a = a.matrix, .b = b.matrix, .bias = {}, .c = c.matrix, .b_transposed = true},
      .a_scale = &a_scale,
      .b_scale = &b_scale};
  float scale = a_scale * b_scale;
  const auto run = [&] {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        float sum = 0;
        for (int64_t k = 0; k < depth; ++k)
          sum += to_float(a.matrix.as<f8e5m2>()[row * depth + k]) * to_float(b.matrix.as<f8e4m3>()[col * depth + k]);
        c.set(row * cols + col, scale * sum);
      }
    }
  };
  CHECK(check.fault(expected, Matrix(), run, scratch).empty());
  scale = a_scale;
  CHECK(holds(check.fault(expected, Matrix(), run, scratch), "times what rounding explains"));
}

namespace {

// A product as tensor cores sum it. Its diagonal has one sign if the operands hold the same numbers.
struct OnTensorCores {
  static constexpr int64_t side = 40;
  const testing::TensorCore& core;
  int64_t depth;
  Held a, b, c;
  alignas(8) std::byte scratch[product_check_bytes];
  const float one = 1;

  OnTensorCores(const testing::TensorCore& core_, DType factors, DType result, int64_t depth_, bool same_numbers)
      : core(core_),
        depth(depth_),
        a(factors, side, depth, 1),
        b(factors, side, depth, same_numbers ? 1 : 2),
        c(result, side, side, 3) {}

  double at(const Held& factor, int64_t row, int64_t k) const {
    const int64_t index = row * depth + k;
    if (factor.matrix.dtype == DType::bf16) return static_cast<double>(to_float(factor.matrix.as<bf16>()[index]));
    return static_cast<double>(to_float(factor.matrix.as<f8e4m3>()[index]));
  }
  // Returns the check's fault for the product without the last `left_out` terms.
  std::string fault(int64_t left_out = 0) {
    std::vector<float> sums;
    for (int64_t row = 0; row < side; ++row) {
      for (int64_t col = 0; col < side; ++col) {
        const auto from_a = [&](int64_t k) { return at(a, row, k); };
        const auto from_b = [&](int64_t k) { return at(b, col, k); };
        sums.push_back(testing::tensor_core_sum(core, depth - left_out, from_a, from_b));
      }
    }
    const auto run = [&] {
      for (size_t i = 0; i < sums.size(); ++i) c.set(static_cast<int64_t>(i), sums[i]);
    };
    ExpectedProduct expected{
        .product = {.a = a.matrix, .b = b.matrix, .bias = {}, .c = c.matrix, .b_transposed = true}};
    if (a.matrix.dtype == DType::f8e4m3) expected.a_scale = expected.b_scale = &one;
    return check.fault(expected, Matrix(), run, scratch);
  }
};

}  // namespace

TEST_CASE("what tensor cores cut off of sums of random signs is no fault, and a step that is left out is", "[long]") {
  for (const int64_t depth : {1600, 6400}) {
    OnTensorCores in_fp8(testing::tensor_core_fp8, DType::f8e4m3, DType::bf16, depth, false);
    CHECK(in_fp8.fault().empty());
    CHECK(holds(in_fp8.fault(testing::tensor_core_fp8.products_of_step), "times what rounding explains"));
    OnTensorCores in_bf16(testing::tensor_core_16_bit, DType::bf16, DType::f32, depth, false);
    CHECK(in_bf16.fault().empty());
    CHECK(holds(in_bf16.fault(1), "times what rounding explains"));
  }
}

TEST_CASE("what tensor cores cut off of sums of one sign is no fault", "[long]") {
  for (const int64_t depth : {1600, 6400}) {
    CHECK(OnTensorCores(testing::tensor_core_fp8, DType::f8e4m3, DType::bf16, depth, true).fault().empty());
    CHECK(OnTensorCores(testing::tensor_core_fp8, DType::f8e4m3, DType::f32, depth, true).fault().empty());
    OnTensorCores in_bf16(testing::tensor_core_16_bit, DType::bf16, DType::f32, depth, true);
    CHECK(in_bf16.fault().empty());
    CHECK(holds(in_bf16.fault(1), "times what rounding explains"));
  }
}

TEST_CASE("the fastest sound candidate is used, and those before it are rejected by name") {
  Operands operands;
  int runs_of_unsteady = 0;
  struct Candidate {
    std::string name;
    float milliseconds;
    std::function<void()> run;
  };
  const auto sound = [&] { cuda_run(operands.product, Stream{}); };
  const auto unsteady = [&] {
    sound();
    if (++runs_of_unsteady > 1) operands.c.matrix.as<bf16>()->bits ^= 1;
  };
  const std::vector<Candidate> candidates{{"slow", 9, sound},
                                          {"unsteady", 3, unsteady},
                                          {"cut", 1, [&] { cuda_run(without_last(operands.product, 22), Stream{}); }},
                                          {"usual", 5, sound},
                                          {"hardly faster than usual", 4.95F, sound}};
  std::vector<std::string> struck;
  const auto fault_of = [&](const Candidate& candidate) { return operands.fault(candidate.run); };
  const auto strike = [&](const Candidate& candidate, const std::string& fault) {
    struck.push_back(candidate.name + (fault.empty() ? "" : ", with a reason"));
  };
  const auto best = fastest_sound(candidates, 0.98F, fault_of, strike);
  REQUIRE(best);
  CHECK(best->name == "usual");
  CHECK(struck == std::vector<std::string>{"cut, with a reason", "unsteady, with a reason"});

  struck.clear();
  const auto none = fastest_sound(std::vector<Candidate>{candidates[2]}, 0.98F, fault_of, strike);
  CHECK_FALSE(none.has_value());
  CHECK(struck.size() == 1);
}

TEST_CASE("a product that no algorithm serves says whether there is none, or all were rejected and why the last") {
  CHECK(holds(why_unserved(""), "has no algorithm"));
  const std::string why = why_unserved("it gives other bits when it runs again");
  CHECK(holds(why, "all algorithms that cuBLASLt has for it were rejected"));
  CHECK(holds(why, "it gives other bits when it runs again"));
}

namespace {

const std::string forward = "forward 520x70x470";

// A library with named algorithms that counts the checks of each.
struct Library {
  Operands operands;
  std::map<std::string, int> checks;
  int runs_of_unsteady = 0;

  std::string fault(const std::string& algorithm) {
    ++checks[algorithm];
    const std::string found = operands.fault([&] {
      cuda_run(algorithm == "cut" ? without_last(operands.product, 22) : operands.product, Stream{});
      if (algorithm == "unsteady" && ++runs_of_unsteady > 1) operands.c.matrix.as<bf16>()->bits ^= 1;
    });
    return found.empty() ? "" : algorithm + ": " + found;
  }
};

// One process and its records; earlier processes used the same folder.
struct Process {
  Library library;
  KnownAlgorithms known;

  explicit Process(const std::string& cache = "none") : known(AlgorithmRecord("A GPU", "cuBLASLt 12"), cache) {}
  // Returns the name of the recalled algorithm, or "none".
  std::string recall() {
    const std::string* found =
        known.recall(forward, "linear_forward", [&](const std::string& algorithm) { return library.fault(algorithm); });
    return found == nullptr ? "none" : *found;
  }
};

std::string record_of(const std::string& algorithm) {
  AlgorithmRecord record("A GPU", "cuBLASLt 12");
  record.set(forward, algorithm);
  return record.text();
}

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("gptrain-known-algorithms-" + std::to_string(getpid()));
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("an algorithm from an earlier run is checked once in a process before it is used") {
  const Folder cache;
  Process first(cache.path.string());
  CHECK(first.recall() == "none");
  first.known.keep_timed(forward, "sound");
  CHECK(first.recall() == "sound");
  CHECK(first.library.checks.empty());  // checked when it was timed

  Process next(cache.path.string());
  CHECK(next.known.find(forward) == nullptr);  // products without a choice need none
  CHECK(next.recall() == "sound");
  CHECK(next.recall() == "sound");
  CHECK(next.library.checks == std::map<std::string, int>{{"sound", 1}});
  CHECK(*next.known.find(forward) == "sound");
  CHECK(next.known.take_warnings().empty());
}

TEST_CASE("an algorithm from an earlier run that is wrong, or irreproducible, is rejected by name", "[long]") {
  for (const auto& [wrong, why] : {std::pair{"cut", "rounding explains"}, {"unsteady", "when it runs again"}}) {
    const Folder cache;
    Process(cache.path.string()).known.keep_timed(forward, wrong);
    Process next(cache.path.string());
    CHECK(next.recall() == "none");
    const std::string warning = next.known.take_warnings();
    for (const std::string part : {"linear_forward", forward.c_str(), cache.path.c_str(), "is not used", wrong, why})
      CHECK(holds(warning, part));
    CHECK_FALSE(holds(next.known.text(), wrong));
    next.known.keep_timed(forward, "sound");  // replaces it on disk, too
    CHECK(Process(cache.path.string()).recall() == "sound");
  }
}

TEST_CASE("a checkpoint's algorithm that is wrong is rejected, and a warning says that bits may differ") {
  const Folder cache;
  Process(cache.path.string()).known.keep_timed(forward, "sound");
  Process resumed(cache.path.string());
  resumed.known.use(record_of("unsteady"));
  CHECK(*resumed.known.find(forward) == "unsteady");
  CHECK(resumed.recall() == "sound");
  const std::string warning = resumed.known.take_warnings();
  for (const char* part : {"the run's record", "unsteady", "when it runs again", "may differ in bits"})
    CHECK(holds(warning, part));
  CHECK(resumed.known.text() == record_of("sound"));
}

TEST_CASE("a checkpoint's sound algorithm comes before what later runs timed") {
  const Folder cache;
  Process(cache.path.string()).known.keep_timed(forward, "faster");
  Process resumed(cache.path.string());
  resumed.known.use(record_of("sound"));
  CHECK(resumed.recall() == "sound");
  CHECK(resumed.library.checks == std::map<std::string, int>{{"sound", 1}});
  CHECK(resumed.known.take_warnings().empty());
}

TEST_CASE("a wrong algorithm that a checkpoint and an earlier run name is checked once") {
  const Folder cache;
  Process(cache.path.string()).known.keep_timed(forward, "cut");
  Process resumed(cache.path.string());
  resumed.known.use(record_of("cut"));
  CHECK(resumed.recall() == "none");
  CHECK(resumed.recall() == "none");
  CHECK(resumed.library.checks == std::map<std::string, int>{{"cut", 1}});
}
