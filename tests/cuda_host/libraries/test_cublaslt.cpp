// Products by cuBLASLt's functions, without a device (cublaslt_stand_in.h): their results, the choice among algorithms
// of which some are wrong, records of choices, and failures of the library.
#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fp8.h"
#include "base/philox.h"
#include "catch.h"
#include "cublaslt_stand_in.h"
#include "ops/backend.h"
#include "ops/gpu_scratch.h"
#include "products.h"
#include "streams.h"

using namespace gptrain;
using cublaslt_stand_in::Behaviour;
using cublaslt_stand_in::Controls;
using cublaslt_stand_in::Offer;

namespace {

template <typename Function>
Function control(const char* name) {
  static void* const library =
      dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(), RTLD_LAZY | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  void* const function = dlsym(library, name);
  REQUIRE(function != nullptr);
  return reinterpret_cast<Function>(function);
}
void begin(const std::vector<Offer>& offers, Controls controls = {}) {
  REQUIRE(offers.size() <= cublaslt_stand_in::most_offers);
  std::copy(offers.begin(), offers.end(), controls.offers);
  controls.num_offers = static_cast<int>(offers.size());
  control<decltype(&cublaslt_stand_in_begin)>("cublaslt_stand_in_begin")(&controls);
}
cublaslt_stand_in::Counts counts() {
  return control<decltype(&cublaslt_stand_in_counts)>("cublaslt_stand_in_counts")();
}

// A matrix with numbers between -1 and 1, and its memory.
struct Held {
  std::vector<std::byte> memory;
  Matrix matrix;

  Held(DType dtype, int64_t rows, int64_t cols, uint32_t seed)
      : memory(static_cast<size_t>(rows * cols * dtype_bytes(dtype)) + 256),
        matrix(aligned(memory.data()), dtype, rows, cols) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const uint32_t word = philox({seed, 9}, {static_cast<uint32_t>(i), 0, 0, 0})[0];
      set(i, static_cast<float>(word % 1024) / 512.0F - 1);
    }
  }
  static std::byte* aligned(std::byte* data) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(data) + 255) / 256 * 256);
  }
  void set(int64_t i, float value) {
    switch (matrix.dtype) {
      case DType::bf16:
        matrix.as<bf16>()[i] = to_bf16(value);
        return;
      case DType::f8e4m3:
        matrix.as<f8e4m3>()[i] = to_fp8<f8e4m3>(value);
        return;
      default:
        matrix.as<float>()[i] = value;
    }
  }
  double at(int64_t i) const {
    return matrix.dtype == DType::bf16 ? to_float(matrix.as<bf16>()[i]) : matrix.as<float>()[i];
  }
};

// Products on a stream of their own, with scratch memory for any op.
struct Library {
  CUstream_st stream{7};
  std::unique_ptr<Products> products = make_products(&stream, "");
  int64_t bytes = gpu_product_workspace_bytes + (1 << 20);
  std::vector<std::byte> memory = std::vector<std::byte>(static_cast<size_t>(bytes) + 256);
  std::byte* scratch = Held::aligned(memory.data());

  template <typename Op>
  void choose(const Op& op) {
    products->choose(op, scratch, bytes);
    stream.wait_until_idle();
  }
  template <typename Op>
  void run(const Op& op) {
    products->run(op, scratch, bytes);
    stream.wait_until_idle();
  }
};

template <typename Op>
void run_on_cpu(const Op& op) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::vector<std::byte> scratch(size_t{8} << 20);
  backend->set_scratch(scratch.data(), static_cast<int64_t>(scratch.size()));
  backend->run(op);
}

// The operands of a linear with a bias, with an activation or without.
struct Linear {
  static constexpr int64_t rows = 72, in = 40, out = 88;
  Held x{DType::bf16, rows, in, 1}, w{DType::bf16, out, in, 2}, bias{DType::bf16, 1, out, 3};
  Held y{DType::bf16, rows, out, 4}, pre{DType::bf16, rows, out, 5};
  Held dy{DType::bf16, rows, out, 6}, dx{DType::bf16, rows, in, 7}, pre_in{DType::bf16, rows, in, 8};
  Held dw{DType::f32, out, in, 9}, d_bias{DType::f32, 1, out, 10};

  LinearForward forward(bool activated) {
    LinearForward op{.x = x.matrix, .w = w.matrix, .bias = bias.matrix, .y = y.matrix};
    if (activated) op.pre_activation = pre.matrix;
    return op;
  }
  LinearBackwardInput backward_input(bool activated) {
    LinearBackwardInput op{.dy = dy.matrix, .w = w.matrix, .dx = dx.matrix};
    if (activated) op.pre_activation = pre_in.matrix;
    return op;
  }
  LinearBackwardWeight backward_weight(bool accumulate) {
    return {.x = x.matrix, .dy = dy.matrix, .dw = dw.matrix, .d_bias = d_bias.matrix, .accumulate = accumulate};
  }
};

// Results differ by the rounding of bf16, twice where an activation follows.
void require_equal(const Held& result, const Held& expected) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < expected.matrix.count(); ++i) {
    difference += std::pow(result.at(i) - expected.at(i), 2);
    size += std::pow(expected.at(i), 2);
  }
  CHECK(std::sqrt(difference / size) < 4e-3);
}

// Runs all ops by the library and by the CPU, and compares their results.
void require_right_results(Library& library) {
  for (const bool more : {false, true}) {
    Linear by_library, by_cpu;
    library.run(by_library.forward(more));
    library.run(by_library.backward_input(more));
    library.run(by_library.backward_weight(more));
    run_on_cpu(by_cpu.forward(more));
    run_on_cpu(by_cpu.backward_input(more));
    run_on_cpu(by_cpu.backward_weight(more));
    require_equal(by_library.y, by_cpu.y);
    require_equal(by_library.dx, by_cpu.dx);
    require_equal(by_library.dw, by_cpu.dw);
    require_equal(by_library.d_bias, by_cpu.d_bias);
    if (more) require_equal(by_library.pre, by_cpu.pre);
  }
}

void choose_all(Library& library) {
  for (const bool more : {false, true}) {
    Linear operands;
    library.choose(operands.forward(more));
    library.choose(operands.backward_input(more));
    library.choose(operands.backward_weight(more));
  }
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Fp8 {
  Held a{DType::f8e4m3, 32, 48, 1}, b{DType::f8e4m3, 64, 48, 2}, c{DType::bf16, 32, 64, 3};
  Held a_scale{DType::f32, 1, 1, 4}, b_scale{DType::f32, 1, 1, 5};

  ScaledProduct product() {
    a_scale.set(0, 0.5F);
    b_scale.set(0, 2.0F);
    return {.a = a.matrix,
            .b = b.matrix,
            .a_scale = a_scale.matrix,
            .b_scale = b_scale.matrix,
            .bias = {},
            .c = c.matrix,
            .accumulate = false};
  }
};

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("products by cuBLASLt are those of the ops, chosen or not") {
  begin({{Behaviour::right, 0}});
  Library library;
  require_right_results(library);
  choose_all(library);
  require_right_results(library);
  CHECK(library.products->take_warnings().empty());
  CHECK(counts().wrong_uses == 0);
}

TEST_CASE("of cuBLASLt's algorithms the fastest right one is taken, and wrong ones are told") {
  // The right ones take 6 and 3 ms; every wrong one is faster.
  begin({{Behaviour::omits_end, 0},
         {Behaviour::right, 6000},
         {Behaviour::varies, 0},
         {Behaviour::leaves_last, 0},
         {Behaviour::refuses, 0},
         {Behaviour::needs_too_much, 0},
         {Behaviour::right, 1500}});
  Library library;
  Linear operands;
  library.choose(operands.forward(false));
  const std::string warnings = library.products->take_warnings();
  for (int wrong : {0, 2, 3}) {
    CAPTURE(wrong, warnings);
    CHECK(holds(warnings, "cuBLASLt's algorithm " + std::to_string(wrong) + ","));
  }
  for (int other : {1, 4, 5, 6}) CHECK(!holds(warnings, "cuBLASLt's algorithm " + std::to_string(other) + ","));
  const int before = counts().products;
  library.run(operands.forward(false));
  CHECK(counts().products == before + 1);
  Linear expected;
  run_on_cpu(expected.forward(false));
  require_equal(operands.y, expected.y);
  CHECK(counts().wrong_uses == 0);
}

TEST_CASE("parts of sums that cuBLASLt rounds to 16 bits are not allowed") {
  begin({{Behaviour::rounds_parts, 0}, {Behaviour::needs_too_much, 0}});
  Library library;
  require_right_results(library);
  CHECK(counts().products == 0);  // own kernels only
  CHECK(holds(library.products->take_warnings(), "an own kernel, which is much slower, computes it"));
}

TEST_CASE("ranks take over each other's algorithms") {
  begin({{Behaviour::right, 0}, {Behaviour::right, 0}});
  Library first;
  choose_all(first);
  const int asked = counts().heuristics;
  CHECK(asked > 0);
  Library second;
  second.products->use_algorithms(first.products->algorithms());
  require_right_results(second);
  CHECK(counts().heuristics == asked);
  CHECK(second.products->take_warnings().empty());
  CHECK(second.products->algorithms() == first.products->algorithms());

  // A device that does not take a recorded algorithm uses another one, and tells it.
  begin({{Behaviour::right, 0}}, {.check = CUBLAS_STATUS_NOT_SUPPORTED});
  Library third;
  third.products->use_algorithms(first.products->algorithms());
  require_right_results(third);
  CHECK(holds(third.products->take_warnings(), "the run's record names an algorithm that does not run here"));
}

TEST_CASE("failures of cuBLASLt end the run with the product's name") {
  Linear operands;
  begin({{Behaviour::right, 0}}, {.heuristic = CUBLAS_STATUS_INTERNAL_ERROR});
  {
    Library library;
    const std::string message = error_of([&] { library.run(operands.forward(false)); });
    CHECK(message ==
          "linear_forward, [72, 40] x [40, 88] in bf16: cuBLASLt error a failure that the test wants "
          "(CUBLAS_STATUS_OF_STAND_IN)");
  }
  begin({{Behaviour::right, 0}});
  Library library;
  library.run(operands.forward(false));
  begin({{Behaviour::right, 0}}, {.start = CUBLAS_STATUS_EXECUTION_FAILED});
  CHECK(holds(error_of([&] { library.run(operands.forward(false)); }), "linear_forward, [72, 40] x [40, 88]"));
}

TEST_CASE("products in FP8 need the library") {
  Fp8 operands;
  begin({{Behaviour::omits_end, 0}, {Behaviour::right, 0}});
  {
    Library library;
    library.choose(operands.product());
    library.run(operands.product());
    Fp8 expected;
    run_on_cpu(expected.product());
    require_equal(operands.c, expected.c);
  }
  begin({{Behaviour::omits_end, 0}});
  Library library;
  CHECK(
      holds(error_of([&] { library.choose(operands.product()); }), "set precision.linears = \"bf16\" to run without"));
}
