// What a GPU's libraries offer at the shapes of training, beside what our rules take of it.
//
//   bench_gpu_library products    each linear of a block and of the head: cuBLASLt's algorithms, the fastest that the
//                                 rules allow beside the fastest of all; fused against separate epilogues
//   bench_gpu_library attention   cuDNN's backward with fixed bits and without, by workspace
//
// Lines that begin with "= " are rows for the table of tools/gpu_check.sh. Exit status: 0, 1 if something failed, 2 bad
// command line, 77 where there is no CUDA device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "device/product_key.h"
#include "fused_attention.h"
#include "ops/footprint.h"
#include "ops/fused_attention_policy.h"
#include "ops/gpu_scratch.h"
#include "ops/shape_text.h"
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

// Memory of the device full of numbers in (-1, 1], in bf16.
class Pool {
 public:
  Pool(Runtime& runtime, int64_t bytes) : memory_(runtime.allocate(bytes)) {
    std::vector<bf16> values(8 * mebibyte - 5);  // a number that no width divides
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = to_bf16(2 * uniform_open_closed(philox({}, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 1);
    const auto most = static_cast<int64_t>(values.size() * sizeof(bf16));
    for (int64_t first = 0; first < bytes; first += most)
      runtime.upload(memory_->data() + first, values.data(), std::min(most, bytes - first));
  }

  std::byte* data() const { return memory_->data(); }
  Matrix matrix(DType dtype, int64_t rows, int64_t cols) const {
    const Matrix result(memory_->data(), dtype, rows, cols);
    if (result.bytes() > memory_->bytes()) throw std::logic_error("a bench has no room for its operands");
    return result;
  }

 private:
  std::unique_ptr<DeviceMemory> memory_;
};

struct Linear {
  const char* name;
  int64_t rows, in, out;
  bool bias, before_activation, after_activation;
};

class ProductBench {
 public:
  explicit ProductBench(Runtime& runtime)
      : stream_(runtime.stream()),
        algorithms_(runtime.stream(), "none"),
        inputs_(runtime, pool_bytes),
        gradients_(runtime, pool_bytes),
        kept_(runtime, pool_bytes),
        results_(runtime, pool_bytes),
        weights_(runtime, pool_bytes / 2),
        bias_(runtime, mebibyte),
        scratch_(runtime, 256 * mebibyte),
        workspace_(runtime, surveyed_workspace) {}

  // Forward, input gradient, weight gradient; returns milliseconds of the fastest that the rules allow, and of all.
  struct Sums {
    double allowed = 0, best = 0, flops = 0;
  };
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
  static constexpr int64_t pool_bytes = 1024 * mebibyte;
  static constexpr int64_t surveyed_workspace = 256 * mebibyte;
  static constexpr double worth_a_row = 1.04;  // the price of the rules

  using Surveyed = Algorithms::Surveyed;

  template <typename Op>
  Call call_of(const Op& op) {
    Call call{.op = Op::name, .product = product_of(op), .workspace = workspace_.data()};
    if (!call.product.bias.given()) return call;
    call.epilogue = Epilogue::bias;
    call.bias = call.product.bias.data;
    return call;
  }

  static LtOperands operands(const Call& call) {
    LtOperands operands = operands_of(call);
    operands.workspace_bytes = surveyed_workspace;
    return operands;
  }

  void tell(const Call& call, Served& served) {
    describe(key_of(call), call, served);
    set_pointers(call, served);
  }

  // The fastest for which `counts` holds; null where there is none.
  template <typename Counts>
  static const Surveyed* fastest(const std::vector<Surveyed>& all, const Counts& counts) {
    const Surveyed* best = nullptr;
    for (const Surveyed& one : all)
      if (counts(one) && (best == nullptr || one.candidate.milliseconds < best->candidate.milliseconds)) best = &one;
    return best;
  }

  void print_all(const std::vector<Surveyed>& all, double flops) {
    for (const Surveyed& one : all) {
      fmt::print("  {:<78} workspace {:>7.1f} MiB {:>9.4f} ms {:>7.1f} TFLOP/s  {}\n",
                 settings_of(one.candidate.algorithm).text(),
                 static_cast<double>(one.workspace_bytes) / static_cast<double>(mebibyte), one.candidate.milliseconds,
                 flops / one.candidate.milliseconds / 1e9, one.allowed ? "allowed" : "against the rules");
    }
  }

  template <typename Op>
  void survey(const Linear& linear, const Op& op, Sums& sums) {
    const Op plain = product_alone(op);
    const Call call = call_of(plain);
    Served served;
    tell(call, served);
    const std::string title =
        fmt::format("{} {} N={} in={} out={}", linear.name, Op::name, linear.rows, linear.in, linear.out);
    const double flops = 2.0 * static_cast<double>(linear.rows * linear.in * linear.out);
    fmt::print("{}\n", title);
    const std::vector<Surveyed> all = algorithms_.survey(served, operands(call));
    print_all(all, flops);
    const Surveyed* best = fastest(all, [](const Surveyed&) { return true; });
    const Surveyed* allowed = fastest(all, [](const Surveyed& one) { return one.allowed; });
    if (allowed == nullptr) {
      print_row(title, "", "", "no algorithm that the rules allow", "fail");
      return;
    }
    const std::string fault = check(call, served, *best);
    const double price = allowed->candidate.milliseconds / best->candidate.milliseconds;
    fmt::print("  rules: {:.1f} TFLOP/s, all: {:.1f} TFLOP/s, x{:.3f}; the best of all: {}\n",
               flops / allowed->candidate.milliseconds / 1e9, flops / best->candidate.milliseconds / 1e9, price,
               fault.empty() ? "sound" : fault);
    if (const std::string of_allowed = check(call, served, *allowed); !of_allowed.empty())
      print_row(title, "", "", "would be struck out: " + of_allowed);
    if (price >= worth_a_row) {
      print_row(title + ", price of the rules", fmt::format("{:.3f}", price), "x",
                fmt::format("split-K {}, scheme {}, {} MiB{}", settings_of(best->candidate.algorithm).split_k,
                            settings_of(best->candidate.algorithm).reduction_scheme, best->workspace_bytes / mebibyte,
                            fault.empty() ? "" : ", unsound"));
    }
    sums.allowed += allowed->candidate.milliseconds;
    sums.best += best->candidate.milliseconds;
    sums.flops += flops;
    if (has_more_than_product(op) && may_fuse(op)) compare_fused(title, op, call, served, *allowed);
    std::fflush(stdout);
  }

  std::string check(const Call& call, Served& served, const Surveyed& one) {
    return algorithms_.fault_of(served, operands(call), expected_of(call), one.candidate.algorithm);
  }

  // One product with the whole epilogue against the product and own kernels after it.
  template <typename Op>
  void compare_fused(const std::string& title, const Op& op, const Call& plain, Served& plain_served,
                     const Surveyed& plain_best) {
    Call call = call_of(op);
    fuse(op, scratch_.data(), call);
    Served served;
    tell(call, served);
    const std::vector<Surveyed> all = algorithms_.survey(served, operands(call));
    const Surveyed* best = fastest(all, [](const Surveyed& one) { return one.allowed; });
    float apart = std::numeric_limits<float>::infinity(), together = apart;
    for (int round = 0; round < Algorithms::timing_rounds; ++round) {
      apart = std::min(apart, algorithms_.milliseconds([&] {
        algorithms_.start(plain_served, operands(plain), plain_best.candidate.algorithm);
        run_rest(op, stream_, scratch_.data());
      }));
      if (best == nullptr) continue;
      together = std::min(together, algorithms_.milliseconds([&] {
        algorithms_.start(served, operands(call), best->candidate.algorithm);
        finish(op, call, stream_);
      }));
    }
    if (best == nullptr) {
      fmt::print("  with{} in the epilogue: not offered; apart {:.4f} ms\n", name_of(call.epilogue).text, apart);
      return;
    }
    const std::string fault = check(call, served, *best);
    fmt::print("  with{} in the epilogue: {:.4f} ms, apart {:.4f} ms; {}\n", name_of(call.epilogue).text, together,
               apart, fault.empty() ? "sound" : fault);
    if (!fault.empty()) print_row(title + std::string(name_of(call.epilogue).text), "", "", "struck out: " + fault);
  }

  Stream stream_;
  Algorithms algorithms_;
  Pool inputs_, gradients_, kept_, results_, weights_, bias_, scratch_, workspace_;
};

int bench_products(Runtime& runtime) {
  ProductBench bench(runtime);
  const auto add = [](ProductBench::Sums& sums, const ProductBench::Sums& more) {
    sums.allowed += more.allowed;
    sums.best += more.best;
    sums.flops += more.flops;
  };
  const auto print_sums = [](const std::string& name, const ProductBench::Sums& sums) {
    print_row(
        name, fmt::format("{:.3f}", sums.allowed), "ms",
        fmt::format("{:.0f} TFLOP/s, {:.0f} at best", sums.flops / sums.allowed / 1e9, sums.flops / sums.best / 1e9));
  };
  bench.run({"square", 8192, 8192, 8192, false, false, false});
  for (const int64_t h : {768, 1600, 4096}) {
    for (const int64_t rows : {8192, 16384, 32768}) {
      ProductBench::Sums sums;
      add(sums, bench.run({"qkv", rows, h, 3 * h, true, false, false}));
      add(sums, bench.run({"out", rows, h, h, true, false, false}));
      add(sums, bench.run({"ffn_in", rows, h, 4 * h, true, true, false}));
      add(sums, bench.run({"ffn_out", rows, 4 * h, h, true, false, true}));
      print_sums(fmt::format("products of a block, h={} N={}", h, rows), sums);
    }
    constexpr int64_t vocabulary = 50304;
    for (const int64_t rows : {2048, 8192})
      print_sums(fmt::format("products of the head, h={} chunk {}", h, rows),
                 bench.run({"head", rows, h, vocabulary, false, false, false}));
  }
  return 0;
}

struct AttentionShape {
  int64_t batch, length, heads, head_size;
};

// Milliseconds of a run, the fastest of several samples.
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
       {AttentionShape{32, 1024, 12, 64}, {16, 1024, 25, 64}, {8, 2048, 16, 128}, {4, 4096, 32, 128}}) {
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
              {.fixed_bits = true, .backward_bytes = bytes});
    }
    measure(backward, fmt::format("attention backward, {}, atomics", shape),
            {.fixed_bits = false, .backward_bytes = scratch_bytes});
  }
  return sound ? 0 : 1;
}

}  // namespace
}  // namespace gptrain

int main(int argc, char** argv) {
  using namespace gptrain;
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what != "products" && what != "attention") {
    fmt::print(stderr, "usage: bench_gpu_library products|attention\n");
    return 2;
  }
  if (num_cuda_devices() == 0) {
    fmt::print("skipped: there is no CUDA device\n");
    return exit_skipped;
  }
  try {
    const auto runtime = make_runtime(0);
    fmt::print("{}\n", runtime->target().name);
    return what == "products" ? bench_products(*runtime) : bench_attention(*runtime);
  } catch (const std::exception& error) {
    fmt::print("failed: {}\n", error.what());
    return 1;
  }
}
