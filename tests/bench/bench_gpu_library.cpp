// Benches a GPU's libraries at the shapes of training: all algorithms that they offer, beside the ones that our rules
// allow.
//
//   bench_gpu_library products    each linear of a block and of the head: cuBLASLt's algorithms, the fastest allowed
//                                 one beside the fastest of all; fused against separate epilogues
//   bench_gpu_library fp8         the same for the FP8 linears of a block; gradient sums in f32 registers, as the rules
//                                 require, beside those in the tensor cores alone
//   bench_gpu_library attention   cuDNN's backward with and without fixed bits, by workspace
//
// Lines that begin with "= " are rows for the table of tools/gpu_check.sh. Exit status: 0, 1 if something failed, 2 for
// a bad command line, 77 without a CUDA device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fp8.h"
#include "base/philox.h"
#include "device/product_key.h"
#include "device/scaled_products.h"
#include "fused_attention.h"
#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"
#include "ops/gpu_scratch.h"
#include "runtime.h"
#include "unfused.h"

namespace gptrain {
namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;
constexpr int exit_skipped = 77;

void print_row(const std::string& name, const std::string& figure, std::string_view unit, const std::string& mark = "",
               std::string_view status = "-") {
  fmt::print("= {}\t{}\t{}\t{}\t{}\n", name, figure, unit, mark, status);
}

template <typename T>
T narrow(float value) {
  if constexpr (is_fp8_type<T>) {
    return to_fp8<T>(value);
  } else {
    return to_bf16(value);
  }
}

// Device memory full of numbers in (-1, 1], different in each pool: if both operands of a product held the same
// numbers, sums would have one sign, which tensor cores round worst.
class Pool {
 public:
  Pool(Runtime& runtime, int64_t bytes, DType dtype = DType::bf16) : memory_(runtime.allocate(bytes)) {
    if (dtype == DType::f8e4m3) {
      fill<f8e4m3>(runtime, bytes);
    } else if (dtype == DType::f8e5m2) {
      fill<f8e5m2>(runtime, bytes);
    } else {
      fill<bf16>(runtime, bytes);
    }
  }

  std::byte* data() const { return memory_->data(); }
  Matrix matrix(DType dtype, int64_t rows, int64_t cols) const {
    const Matrix result(memory_->data(), dtype, rows, cols);
    if (result.bytes() > memory_->bytes()) throw std::logic_error("a bench has no room for its operands");
    return result;
  }

 private:
  template <typename T>
  void fill(Runtime& runtime, int64_t bytes) {
    static uint32_t pools = 0;
    const PhiloxKey key{++pools, sizeof(T)};
    std::vector<T> values(8 * mebibyte - 15);  // a prime
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = narrow<T>(2 * uniform_open_closed(philox(key, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 1);
    const auto most = static_cast<int64_t>(values.size() * sizeof(T));
    for (int64_t first = 0; first < bytes; first += most)
      runtime.upload(memory_->data() + first, values.data(), std::min(most, bytes - first));
  }

  std::unique_ptr<DeviceMemory> memory_;
};

// A product as it is described to the library.
struct Subject {
  std::string title;
  double flops;
  Served served;
  LtOperands operands;
  Expected expected;
};

// Total milliseconds of the fastest allowed and of the fastest algorithms.
struct Sums {
  double allowed = 0, best = 0, flops = 0;

  void operator+=(const Sums& more) {
    allowed += more.allowed;
    best += more.best;
    flops += more.flops;
  }
  void print(const std::string& name) const {
    print_row(name, fmt::format("{:.3f}", allowed), "ms",
              fmt::format("{:.0f} TFLOP/s, {:.0f} at best", flops / allowed / 1e9, flops / best / 1e9));
  }
};

using Surveyed = Algorithms::Surveyed;

// Returns the fastest algorithm for which `counts` holds; null if there is none.
template <typename Counts>
const Surveyed* fastest(const std::vector<Surveyed>& all, const Counts& counts) {
  const Surveyed* best = nullptr;
  for (const Surveyed& one : all)
    if (counts(one) && (best == nullptr || one.candidate.milliseconds < best->candidate.milliseconds)) best = &one;
  return best;
}

class Survey {
 public:
  explicit Survey(Runtime& runtime)
      : algorithms_(runtime.stream(), "none"), workspace_(runtime, surveyed_workspace_bytes) {}

  Algorithms& algorithms() { return algorithms_; }
  std::byte* workspace() const { return workspace_.data(); }

  // Returns all algorithms of a product, also those that need more workspace than the rules allow.
  std::vector<Surveyed> all_of(Subject& subject) const {
    subject.operands.workspace_bytes = surveyed_workspace_bytes;
    return algorithms_.survey(subject.served, subject.operands);
  }
  std::string fault_of(Subject& subject, const Surveyed& one) const {
    return algorithms_.fault_of(subject.served, subject.operands, subject.expected, one.candidate.algorithm);
  }

  // Prints all offered algorithms and the price of the rules. Returns the fastest allowed one, if any.
  std::optional<Surveyed> run(Subject& subject, Sums& sums) const {
    fmt::print("{}\n", subject.title);
    const std::vector<Surveyed> all = all_of(subject);
    print_all(all, subject.flops);
    const Surveyed* best = fastest(all, [](const Surveyed&) { return true; });
    const Surveyed* allowed = fastest(all, [](const Surveyed& one) { return one.allowed; });
    if (allowed == nullptr) {
      print_row(subject.title, "", "", "no algorithm that the rules allow", "fail");
      return std::nullopt;
    }
    const std::string fault = fault_of(subject, *best);
    const double price = allowed->candidate.milliseconds / best->candidate.milliseconds;
    fmt::print("  rules: {:.1f} TFLOP/s, all: {:.1f} TFLOP/s, x{:.3f}; the best of all: {}\n",
               subject.flops / allowed->candidate.milliseconds / 1e9,
               subject.flops / best->candidate.milliseconds / 1e9, price, fault.empty() ? "sound" : fault);
    if (const std::string of_allowed = fault_of(subject, *allowed); !of_allowed.empty())
      print_row(subject.title, "", "", "would be rejected: " + of_allowed);
    if (price >= worth_a_row) {
      const AlgorithmSettings settings = settings_of(best->candidate.algorithm);
      print_row(subject.title + ", price of the rules", fmt::format("{:.3f}", price), "x",
                fmt::format("split-K {}, scheme {}, {} MiB{}", settings.split_k, settings.reduction_scheme,
                            best->workspace_bytes / mebibyte, fault.empty() ? "" : ", unsound"));
    }
    sums += {allowed->candidate.milliseconds, best->candidate.milliseconds, subject.flops};
    std::fflush(stdout);
    return *allowed;
  }

 private:
  static constexpr int64_t surveyed_workspace_bytes = 256 * mebibyte;
  static constexpr double worth_a_row = 1.04;  // price of the rules above which a row is printed

  static void print_all(const std::vector<Surveyed>& all, double flops) {
    for (const Surveyed& one : all) {
      fmt::print("  {:<78} workspace {:>7.1f} MiB {:>9.4f} ms {:>7.1f} TFLOP/s  {}\n",
                 settings_of(one.candidate.algorithm).text(),
                 static_cast<double>(one.workspace_bytes) / static_cast<double>(mebibyte), one.candidate.milliseconds,
                 flops / one.candidate.milliseconds / 1e9, one.allowed ? "allowed" : "against the rules");
    }
  }

  Algorithms algorithms_;
  Pool workspace_;
};

struct Linear {
  const char* name;
  int64_t rows, in, out;
  bool bias = false, before_activation = false, after_activation = false;

  double flops() const { return 2.0 * static_cast<double>(rows * in * out); }
  std::string title(std::string_view op) const {
    return fmt::format("{} {} N={} in={} out={}", name, op, rows, in, out);
  }
};

constexpr int64_t largest_operand_bytes = 1024 * mebibyte;

class ProductBench {
 public:
  explicit ProductBench(Runtime& runtime)
      : stream_(runtime.stream()),
        survey_(runtime),
        inputs_(runtime, largest_operand_bytes),
        gradients_(runtime, largest_operand_bytes),
        kept_(runtime, largest_operand_bytes),
        results_(runtime, largest_operand_bytes),
        weights_(runtime, largest_operand_bytes / 2),
        bias_(runtime, mebibyte),
        scratch_(runtime, 256 * mebibyte) {}

  // Runs forward, input gradient and weight gradient.
  Sums run(const Linear& linear) {
    const Matrix x = inputs_.matrix(DType::bf16, linear.rows, linear.in);
    const Matrix w = weights_.matrix(DType::bf16, linear.out, linear.in);
    const Matrix dy = gradients_.matrix(DType::bf16, linear.rows, linear.out);
    const Matrix bias = linear.bias ? bias_.matrix(DType::bf16, 1, linear.out) : Matrix();
    const Matrix d_bias = linear.bias ? bias_.matrix(DType::f32, 1, linear.out) : Matrix();
    Sums sums;
    LinearForward forward{.x = x, .w = w, .bias = bias, .y = results_.matrix(DType::bf16, linear.rows, linear.out)};
    if (linear.before_activation) forward.pre_activation = kept_.matrix(DType::bf16, linear.rows, linear.out);
    survey(linear, forward, sums);
    LinearBackwardInput input{.dy = dy, .w = w, .dx = results_.matrix(DType::bf16, linear.rows, linear.in)};
    if (linear.after_activation) input.pre_activation = kept_.matrix(DType::bf16, linear.rows, linear.in);
    survey(linear, input, sums);
    survey(linear,
           LinearBackwardWeight{.x = x,
                                .dy = dy,
                                .dw = results_.matrix(DType::f32, linear.out, linear.in),
                                .d_bias = d_bias,
                                .accumulate = true},
           sums);
    return sums;
  }

 private:
  template <typename Op>
  Call call_of(const Op& op) const {
    Call call{.op = Op::name, .product = product_of(op), .workspace = survey_.workspace()};
    if (!call.product.bias.given()) return call;
    call.epilogue = Epilogue::bias;
    call.bias = call.product.bias.data;
    return call;
  }

  static Subject subject_of(const std::string& title, double flops, const Call& call) {
    Subject subject{
        .title = title, .flops = flops, .served = {}, .operands = operands_of(call), .expected = expected_of(call)};
    describe(key_of(call), call, subject.served);
    set_pointers(call, subject.served);
    return subject;
  }

  template <typename Op>
  void survey(const Linear& linear, const Op& op, Sums& sums) {
    Subject plain = subject_of(linear.title(Op::name), linear.flops(), call_of(product_alone(op)));
    const std::optional<Surveyed> best = survey_.run(plain, sums);
    if (best && has_more_than_product(op) && may_fuse(op)) compare_fused(op, plain, *best);
  }

  // Compares a product with a full epilogue against the product followed by our own kernels.
  template <typename Op>
  void compare_fused(const Op& op, Subject& plain, const Surveyed& plain_best) {
    Call call = call_of(op);
    fuse(op, scratch_.data(), call);
    Subject fused = subject_of(fmt::format("{}{}", plain.title, epilogue_names[call.epilogue].text), plain.flops, call);
    const std::vector<Surveyed> all = survey_.all_of(fused);
    const Surveyed* best = fastest(all, [](const Surveyed& one) { return one.allowed; });
    const Algorithms& algorithms = survey_.algorithms();
    float separate = std::numeric_limits<float>::infinity(), in_epilogue = separate;
    for (int round = 0; round < Algorithms::timing_rounds; ++round) {
      separate = std::min(separate, algorithms.milliseconds([&] {
        algorithms.start(plain.served, plain.operands, plain_best.candidate.algorithm);
        run_rest(op, stream_, scratch_.data());
      }));
      if (best == nullptr) continue;
      in_epilogue = std::min(in_epilogue, algorithms.milliseconds([&] {
        algorithms.start(fused.served, fused.operands, best->candidate.algorithm);
        finish(op, call, stream_);
      }));
    }
    if (best == nullptr) {
      fmt::print("  with{} in the epilogue: not offered; apart {:.4f} ms\n", epilogue_names[call.epilogue].text,
                 separate);
      return;
    }
    const std::string fault = survey_.fault_of(fused, *best);
    fmt::print("  with{} in the epilogue: {:.4f} ms, apart {:.4f} ms; {}\n", epilogue_names[call.epilogue].text,
               in_epilogue, separate, fault.empty() ? "sound" : fault);
    if (!fault.empty()) print_row(fused.title, "", "", "rejected: " + fault);
    std::fflush(stdout);
  }

  Stream stream_;
  Survey survey_;
  Pool inputs_, gradients_, kept_, results_, weights_, bias_, scratch_;
};

// Products as an FP8 linear runs them: E4M3 forward, output gradients in E5M2, every operand with its rows along the
// depth.
class ScaledBench {
 public:
  explicit ScaledBench(Runtime& runtime)
      : survey_(runtime),
        inputs_(runtime, largest_operand_bytes / 2, DType::f8e4m3),
        gradients_(runtime, largest_operand_bytes / 2, DType::f8e5m2),
        weights_(runtime, largest_operand_bytes / 4, DType::f8e4m3),
        results_(runtime, largest_operand_bytes),
        bias_(runtime, mebibyte),
        scales_(runtime.allocate(256)) {
    constexpr float values[] = {0.5F, 2.0F};
    runtime.upload(scales_->data(), values, sizeof values);
  }

  Sums run(const Linear& linear) {
    const int64_t rows = linear.rows, in = linear.in, out = linear.out;
    Sums sums;
    const Matrix bias = linear.bias ? bias_.matrix(DType::bf16, 1, out) : Matrix();
    survey(linear, "forward", inputs_.matrix(DType::f8e4m3, rows, in), weights_.matrix(DType::f8e4m3, out, in), bias,
           results_.matrix(DType::bf16, rows, out), sums);
    survey(linear, "input gradient", gradients_.matrix(DType::f8e5m2, rows, out),
           weights_.matrix(DType::f8e4m3, in, out), {}, results_.matrix(DType::bf16, rows, in), sums);
    survey(linear, "weight gradient", gradients_.matrix(DType::f8e5m2, out, rows),
           inputs_.matrix(DType::f8e4m3, in, rows), {}, results_.matrix(DType::f32, out, in), sums);
    return sums;
  }

 private:
  void survey(const Linear& linear, std::string_view what, const Matrix& a, const Matrix& b, const Matrix& bias,
              const Matrix& c, Sums& sums) {
    const ScaledProduct op{.a = a,
                           .b = b,
                           .a_scale = Matrix(scales_->data(), DType::f32, 1, 1),
                           .b_scale = Matrix(scales_->data() + sizeof(float), DType::f32, 1, 1),
                           .bias = bias,
                           .c = c,
                           .accumulate = c.dtype == DType::f32};
    Subject subject{.title = linear.title(fmt::format("FP8 {}", what)),
                    .flops = linear.flops(),
                    .served = {},
                    .operands = operands_of(op, survey_.workspace()),
                    .expected = expected_of(op)};
    describe(op, subject.served);
    set_pointers(op, subject.served);
    const std::optional<Surveyed> best = survey_.run(subject, sums);
    if (best && a.dtype == DType::f8e5m2 && linear.rows == rows_of_fast_sums) compare_fast_sums(subject, *best);
  }

  // Times gradient sums that stay in the tensor cores.
  void compare_fast_sums(Subject& subject, const Surveyed& best) const {
    subject.served.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    const std::vector<Surveyed> all = survey_.all_of(subject);
    const Surveyed* fast = fastest(all, [](const Surveyed& one) { return one.allowed; });
    if (fast == nullptr) return print_row(subject.title + ", sums of 14 bits", "", "", "not offered");
    print_row(subject.title + ", price of f32 sums",
              fmt::format("{:.3f}", best.candidate.milliseconds / fast->candidate.milliseconds), "x",
              fmt::format("{:.0f} TFLOP/s without", subject.flops / fast->candidate.milliseconds / 1e9));
    std::fflush(stdout);
  }

  static constexpr int64_t rows_of_fast_sums = 16384;  // one size only, to save time

  Survey survey_;
  Pool inputs_, gradients_, weights_, results_, bias_;
  std::unique_ptr<DeviceMemory> scales_;
};

template <typename Bench>
Sums block_of(Bench& bench, int64_t rows, int64_t h) {
  Sums sums;
  sums += bench.run({.name = "qkv", .rows = rows, .in = h, .out = 3 * h, .bias = true});
  sums += bench.run({.name = "out", .rows = rows, .in = h, .out = h, .bias = true});
  sums += bench.run({.name = "ffn_in", .rows = rows, .in = h, .out = 4 * h, .bias = true, .before_activation = true});
  sums += bench.run({.name = "ffn_out", .rows = rows, .in = 4 * h, .out = h, .bias = true, .after_activation = true});
  return sums;
}

int bench_products(Runtime& runtime) {
  ProductBench bench(runtime);
  bench.run({.name = "square", .rows = 8192, .in = 8192, .out = 8192});
  for (const int64_t h : {768, 1600, 4096}) {
    for (const int64_t rows : {8192, 16384, 32768})
      block_of(bench, rows, h).print(fmt::format("products of a block, h={} N={}", h, rows));
    constexpr int64_t vocabulary = 50304;
    for (const int64_t rows : {2048, 8192})
      bench.run({.name = "head", .rows = rows, .in = h, .out = vocabulary})
          .print(fmt::format("products of the head, h={} chunk {}", h, rows));
  }
  return 0;
}

int bench_fp8(Runtime& runtime) {
  if (!runtime.target().fp8_products) {
    fmt::print("skipped: the device has no FP8 products\n");
    return exit_skipped;
  }
  ScaledBench bench(runtime);
  bench.run({.name = "square", .rows = 8192, .in = 8192, .out = 8192});
  for (const int64_t h : {768, 1600, 4096})
    for (const int64_t rows : {8192, 16384, 32768})
      block_of(bench, rows, h).print(fmt::format("FP8 products of a block, h={} N={}", h, rows));
  return 0;
}

struct AttentionShape {
  int64_t batch, length, heads, head_size;
};

// Returns the milliseconds of a run, the fastest of several samples.
template <typename Body>
double milliseconds_of(Runtime& runtime, const Body& body) {
  using Clock = std::chrono::steady_clock;
  double fastest = std::numeric_limits<double>::infinity();
  body();
  for (int sample = 0; sample < 5; ++sample) {
    constexpr int runs = 10;
    runtime.synchronize();
    const auto start = Clock::now();
    for (int run = 0; run < runs; ++run) body();
    runtime.synchronize();
    fastest = std::min(fastest, std::chrono::duration<double, std::milli>(Clock::now() - start).count() / runs);
  }
  return fastest;
}

int bench_attention(Runtime& runtime) {
  constexpr int64_t scratch_bytes = 4096 * mebibyte;
  const Pool qkv(runtime, 1024 * mebibyte), d_qkv(runtime, 1024 * mebibyte), o(runtime, 512 * mebibyte),
      d_o(runtime, 512 * mebibyte), lse(runtime, 64 * mebibyte);
  const auto scratch = runtime.allocate(scratch_bytes);
  bool sound = true;
  for (const auto& [batch, length, heads, head_size] :
       {AttentionShape{.batch = 32, .length = 1024, .heads = 12, .head_size = 64},
        {.batch = 16, .length = 1024, .heads = 25, .head_size = 64},
        {.batch = 8, .length = 2048, .heads = 16, .head_size = 128},
        {.batch = 4, .length = 4096, .heads = 32, .head_size = 128}}) {
    const int64_t rows = batch * length, width = heads * head_size;
    AttentionForward forward{};
    forward.batch = batch;
    forward.sequence_length = length;
    forward.num_heads = forward.num_kv_heads = heads;
    forward.head_size = head_size;
    forward.scale = 0.125;
    const Matrix all = qkv.matrix(DType::bf16, rows, 3 * width), d_all = d_qkv.matrix(DType::bf16, rows, 3 * width);
    forward.q = all.column_range(0, width);
    forward.k = all.column_range(width, width);
    forward.v = all.column_range(2 * width, width);
    forward.o = o.matrix(DType::bf16, rows, width);
    forward.lse = lse.matrix(DType::f32, batch * heads, length);
    AttentionBackward backward{};
    backward.batch = batch;
    backward.sequence_length = length;
    backward.num_heads = backward.num_kv_heads = heads;
    backward.head_size = head_size;
    backward.scale = forward.scale;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.o = forward.o;
    backward.lse = forward.lse;
    backward.d_o = d_o.matrix(DType::bf16, rows, width);
    backward.dq = d_all.column_range(0, width);
    backward.dk = d_all.column_range(width, width);
    backward.dv = d_all.column_range(2 * width, width);
    const std::string shape = fmt::format("B={} T={} H={} D={}", batch, length, heads, head_size);
    const auto measure = [&](const auto& op, const std::string& name, const FusedAttentionOptions& options) {
      try {
        const auto attention = make_fused_attention(runtime.stream(), options);
        const AttentionPieces pieces = attention->pieces(op);
        if (pieces.sequences == 0) return print_row(name, "", "", "refused: " + pieces.refusal);
        const double ms = milliseconds_of(runtime, [&] { attention->run(op, nullptr, scratch->data()); });
        const auto flops = static_cast<double>(footprint(op, runtime.target()).executed_flops);
        print_row(name, fmt::format("{:.4f}", ms), "ms", fmt::format("{:.0f} TFLOP/s", flops / ms / 1e9));
      } catch (const std::exception& error) {
        sound = false;
        print_row(name, "", "", error.what(), "fail");
      }
      std::fflush(stdout);
    };
    measure(forward, "attention forward, " + shape, {});
    for (const int64_t bytes : {64 * mebibyte, 256 * mebibyte, fused_attention_preferred_bytes}) {
      measure(backward, fmt::format("attention backward, {}, fixed bits, {} MiB", shape, bytes / mebibyte),
              {.backward_bytes = bytes});
    }
    backward.fixed_bits = false;
    measure(backward, fmt::format("attention backward, {}, atomics", shape), {.backward_bytes = scratch_bytes});
  }
  return sound ? 0 : 1;
}

}  // namespace
}  // namespace gptrain

int main(int argc, char** argv) {
  using namespace gptrain;
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what != "products" && what != "fp8" && what != "attention") {
    fmt::print(stderr, "usage: bench_gpu_library products|fp8|attention\n");
    return 2;
  }
  if (num_cuda_devices() == 0) {
    fmt::print("skipped: there is no CUDA device\n");
    return exit_skipped;
  }
  try {
    const auto runtime = make_runtime(0);
    fmt::print("{}\n", runtime->target().name);
    if (what == "products") return bench_products(*runtime);
    return what == "fp8" ? bench_fp8(*runtime) : bench_attention(*runtime);
  } catch (const std::exception& error) {
    fmt::print("failed: {}\n", error.what());
    return 1;
  }
}
