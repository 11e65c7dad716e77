// Products by cuBLASLt.
//
// cuBLASLt computes D [m, n] = op(A) [m, k] op(B) [k, n] (+ D) on column-major matrices: element (i, j) of a matrix
// with leading dimension ld is at i + j ld. Ours are row-major: element (i, j) is at i stride + j. Our [r, c] matrix of
// stride s is therefore the column-major transpose [c, r] with ld = s. For c = a b, cuBLASLt computes D = c^T = b^T
// a^T: A is our second factor, B our first. The column-major view of a factor is its transpose, as D needs it, so the
// operation is N. If the factor lies transposed in our memory, the operation is T. In the letters of ops.h:
//
//   op                     ours           D = op(A) op(B)        m, n, k      A (as stored)     B (as stored)     ldd
//   LinearForward          y = x w^T      y^T  = (w^T)^T x^T     out, N, in   w  [in, out] T    x  [in, N]   N    y
//   LinearBackwardInput    dx = dy w      dx^T = w^T dy^T        in, N, out   w  [in, out] N    dy [out, N]  N    dx
//   LinearBackwardWeight   dw = dy^T x    dw^T = x^T (dy^T)^T    in, out, N   x  [in, N]   N    dy [out, N]  T    dw
//
// "As stored" is the column-major view of the memory (ld: the operand's stride); T or N is the operation on it. The
// bias has one element per row of D: [out], as CUBLASLT_EPILOGUE_BIAS adds it. The library requires the bias in D's
// dtype and may read it 16 bytes at a time whatever its alignment; if either does not hold, it gets a copy.
// CUBLAS_COMPUTE_32F multiplies f32 in f32, never in TF32, and sums 16-bit types in f32.
#include "products.h"

#include <algorithm>
#include <compare>
#include <cublasLt.h>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>

#include "base/dtype.h"
#include "device/algorithms.h"
#include "device/epilogues.h"
#include "device/product_key.h"
#include "device/scaled_products.h"
#include "kernels/run.h"
#include "ops/check.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

class CublasProducts final : public Products {
 public:
  CublasProducts(Stream stream, const std::string& algorithm_cache)
      : stream_(stream), algorithms_(stream, algorithm_cache), scaled_(algorithms_) {}

  void run(const LinearForward& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void run(const LinearBackwardInput& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void run(const LinearBackwardWeight& op, std::byte* scratch, int64_t bytes) override { run_op(op, scratch, bytes); }
  void run(const ScaledProduct& op, std::byte* scratch, int64_t bytes) override { scaled_.run(op, scratch, bytes); }
  void choose(const LinearForward& op, std::byte* scratch, int64_t bytes) override { choose_for(op, scratch, bytes); }
  void choose(const LinearBackwardInput& op, std::byte* scratch, int64_t bytes) override {
    choose_for(op, scratch, bytes);
  }
  void choose(const LinearBackwardWeight& op, std::byte* scratch, int64_t bytes) override {
    choose_for(op, scratch, bytes);
  }
  void choose(const ScaledProduct& op, std::byte* scratch, int64_t bytes) override {
    scaled_.choose(op, scratch, bytes);
  }

  std::string algorithms() const override { return algorithms_.text(); }
  void use_algorithms(const std::string& record) override {
    algorithms_.use(record);
    served_.clear();
    scaled_.forget();
  }
  std::string take_warnings() override { return algorithms_.take_warnings(); }

 private:
  template <typename Op>
  Call call_of(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void run_op(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void run_product(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  bool run_call(const Call& call);
  template <typename Op>
  void choose_for(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  void choose_product(const Op& op, std::byte* scratch, int64_t scratch_bytes);
  template <typename Op>
  bool is_faster_unfused(const Op& op, const Call& fused, Served& served, const cublasLtMatmulAlgo_t& algorithm,
                         std::byte* scratch, int64_t scratch_bytes);

  Served& served(const Call& call);

  Stream stream_;
  Algorithms algorithms_;
  ScaledProducts scaled_;
  std::map<ProductKey, Served> served_;
};

template <typename Op>
Call CublasProducts::call_of(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  require_scratch(Op::name, gpu_scratch_bytes(op), scratch_bytes);
  if (reinterpret_cast<uintptr_t>(scratch) % workspace_alignment != 0)
    throw std::logic_error(fmt::format("{}: the scratch memory is not aligned to 256 bytes", Op::name));
  Call call{.op = Op::name, .product = product_of(op), .workspace = scratch};
  const Matrix& bias = call.product.bias;
  if (!bias.given()) return call;
  call.epilogue = Epilogue::bias;
  call.bias = bias.data;
  if (bias.dtype == call.product.c.dtype && alignment_of(bias.data) == most_alignment) return call;
  const Matrix copy(scratch + gpu_product_workspace_bytes, call.product.c.dtype, 1, bias.cols);
  cuda_run(Cast{bias, copy}, stream_);
  call.bias = copy.data;
  return call;
}

template <typename Op>
void CublasProducts::run_op(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  if (!has_more_than_product(op)) return run_product(op, scratch, scratch_bytes);
  if (may_fuse(op)) {
    Call call = call_of(op, scratch, scratch_bytes);
    fuse(op, scratch, call);
    if (run_call(call)) return finish(op, call, stream_);
  }
  run_product(product_alone(op), scratch, scratch_bytes);
  run_rest(op, stream_, scratch);
}

template <typename Op>
void CublasProducts::run_product(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  const Call call = call_of(op, scratch, scratch_bytes);
  if (!run_call(call)) cuda_run(call.product, stream_);
}

// Returns false if the library does not serve the product.
bool CublasProducts::run_call(const Call& call) { return algorithms_.run(served(call), operands_of(call)); }

template <typename Op>
void CublasProducts::choose_for(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  if (!has_more_than_product(op)) return choose_product(op, scratch, scratch_bytes);
  const Op timed = for_timing(op, scratch);
  if (!may_fuse(timed)) return choose_product(product_alone(timed), scratch, scratch_bytes);
  // Uses the key of the op itself, which does not depend on the destination of the bias gradient.
  Call call = call_of(timed, scratch, scratch_bytes);
  fuse(timed, scratch, call);
  Served& served = this->served(call);
  const bool recalled = algorithms_.recall(served, operands_of(call), expected_of(call));
  if (recalled && served.algorithm) return;
  choose_product(product_alone(timed), scratch, scratch_bytes);
  if (recalled) return;
  const std::optional<Algorithms::Candidate> best = algorithms_.fastest(served, operands_of(call), expected_of(call));
  if (!best) return algorithms_.set_algorithm(served, std::nullopt);
  const bool is_unfused = is_faster_unfused(timed, call, served, best->algorithm, scratch, scratch_bytes);
  algorithms_.set_and_record(served, is_unfused ? std::nullopt : std::optional(best->algorithm));
}

template <typename Op>
bool CublasProducts::is_faster_unfused(const Op& op, const Call& fused, Served& served,
                                       const cublasLtMatmulAlgo_t& algorithm, std::byte* scratch,
                                       int64_t scratch_bytes) {
  float fused_milliseconds = std::numeric_limits<float>::infinity();
  float unfused_milliseconds = fused_milliseconds;
  for (int round = 0; round < Algorithms::timing_rounds; ++round) {
    fused_milliseconds = std::min(fused_milliseconds, algorithms_.milliseconds([&] {
      algorithms_.start(served, operands_of(fused), algorithm);
      finish(op, fused, stream_);
    }));
    unfused_milliseconds = std::min(unfused_milliseconds, algorithms_.milliseconds([&] {
      run_product(product_alone(op), scratch, scratch_bytes);
      run_rest(op, stream_, scratch);
    }));
  }
  return unfused_milliseconds < Algorithms::clearly * fused_milliseconds;
}

template <typename Op>
void CublasProducts::choose_product(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  const Call call = call_of(op, scratch, scratch_bytes);
  algorithms_.choose(served(call), operands_of(call), expected_of(call));
}

Served& CublasProducts::served(const Call& call) {
  const ProductKey key = key_of(call);
  const auto [entry, is_new] = served_.try_emplace(key);
  Served& served = entry->second;
  if (is_new) describe(key, call, served);
  set_pointers(call, served);
  return served;
}

}  // namespace

std::unique_ptr<Products> make_products(Stream stream, const std::string& algorithm_cache) {
  return std::make_unique<CublasProducts>(stream, algorithm_cache);
}

}  // namespace gptrain::cuda
