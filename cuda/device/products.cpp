// Products by cuBLASLt.
//
// cuBLASLt computes D [m, n] = op(A) [m, k] op(B) [k, n] (+ D) on matrices that lie in memory by columns: element (i,
// j) of a matrix of leading dimension ld is at i + j ld. Ours lie by rows: element (i, j) is at i stride + j. So our
// [r, c] matrix of stride s is, to cuBLASLt, its transpose: a [c, r] matrix with ld = s. To get c = a b it computes
// D = c^T = b^T a^T: A is our second factor, B our first. A factor that we store as it is multiplied is, by columns,
// the transpose that D needs (N); one that we store transposed still has to be turned (T). In the letters of ops.h:
//
//   op                     ours           D = op(A) op(B)        m, n, k      A (as stored)     B (as stored)     ldd
//   LinearForward          y = x w^T      y^T  = (w^T)^T x^T     out, N, in   w  [in, out] T    x  [in, N]   N    y
//   LinearBackwardInput    dx = dy w      dx^T = w^T dy^T        in, N, out   w  [in, out] N    dy [out, N]  N    dx
//   LinearBackwardWeight   dw = dy^T x    dw^T = x^T (dy^T)^T    in, out, N   x  [in, N]   N    dy [out, N]  T    dw
//
// where "as stored" is what the memory is by columns (ld: the operand's stride), and T or N the operation on it. The
// bias has one element for each row of D: [out], which is what CUBLASLT_EPILOGUE_BIAS adds. It takes the bias in D's
// dtype, and may pick a kernel that reads 16 bytes of it at a time, whatever its alignment: it is given a copy where
// either does not hold. CUBLAS_COMPUTE_32F multiplies f32 in f32, never in TF32, and 16-bit types with f32 sums.
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
#include "device/scaled_products.h"
#include "kernels/elements.h"
#include "ops/check.h"
#include "ops/gpu_scratch.h"

namespace gptrain {
namespace {

// What an algorithm is chosen for. Alignments are in bytes, of the addresses; strides speak for themselves.
struct ProductKey {
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  uint32_t align_a, align_b, align_d;
  bool transpose_a, transpose_b;
  DType operands, result;
  Epilogue epilogue;
  int64_t ld_aux;  // of the pre-activation; 0: there is none
  auto operator<=>(const ProductKey&) const = default;

  std::string text() const {
    return fmt::format("{}{} m={} n={} k={} ld={},{},{} align={},{},{} {} to {}{}{}", transpose_a ? 'T' : 'N',
                       transpose_b ? 'T' : 'N', m, n, k, lda, ldb, ldd, align_a, align_b, align_d, dtype_name(operands),
                       dtype_name(result), name_of(epilogue).text, ld_aux > 0 ? fmt::format(" ld={}", ld_aux) : "");
  }
};

ProductKey key_of(const Call& call) {
  const Product& product = call.product;
  return {.m = product.c.cols,
          .n = product.c.rows,
          .k = product.depth(),
          .lda = leading_dimension(product.b),
          .ldb = leading_dimension(product.a),
          .ldd = leading_dimension(product.c),
          .align_a = alignment_of(product.b.data),
          .align_b = alignment_of(product.a.data),
          .align_d = alignment_of(product.c.data),
          .transpose_a = product.b_transposed,
          .transpose_b = product.a_transposed,
          .operands = product.a.dtype,
          .result = product.c.dtype,
          .epilogue = call.epilogue,
          .ld_aux = call.pre_activation.given() ? leading_dimension(call.pre_activation) : 0};
}

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
  bool is_faster_apart(const Op& op, const Call& fused, Served& served, const cublasLtMatmulAlgo_t& algorithm,
                       std::byte* scratch, int64_t scratch_bytes);

  Served& served(const Call& call);

  Stream stream_;
  Algorithms algorithms_;
  ScaledProducts scaled_;
  std::map<ProductKey, Served> served_;
};

LtOperands operands_of(const Call& call) {
  const Product& product = call.product;
  return {product.b.data, product.a.data, product.c.data, product.accumulate, call.workspace};
}

void describe(const ProductKey& key, const Call& call, Served& served) {
  served.text = call.text();
  served.name = key.text();
  served.otherwise = is_more_than_bias(key.epilogue) ? apart : own_kernel;
  served.depth = key.k;
  served.align_a = key.align_a;
  served.align_b = key.align_b;
  served.align_d = key.align_d;
  served.begin();
  const cublasOperation_t plain = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  served.set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_a ? transposed : plain);
  served.set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_b ? transposed : plain);
  served.set(CUBLASLT_MATMUL_DESC_EPILOGUE, name_of(key.epilogue).library);
  if (key.ld_aux > 0) served.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ld_aux);
  served.lay_out(served.a, key.operands, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k, key.lda);
  served.lay_out(served.b, key.operands, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n, key.ldb);
  served.lay_out(served.d, key.result, key.m, key.n, key.ldd);
}

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

// False: the library does not serve it.
bool CublasProducts::run_call(const Call& call) { return algorithms_.run(served(call), operands_of(call)); }

template <typename Op>
void CublasProducts::choose_for(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  if (!has_more_than_product(op)) return choose_product(op, scratch, scratch_bytes);
  const Op timed = for_timing(op, scratch);
  if (!may_fuse(timed)) return choose_product(product_alone(timed), scratch, scratch_bytes);
  // The key is that of the op itself: neither depends on where the bias' gradient goes.
  Call call = call_of(timed, scratch, scratch_bytes);
  fuse(timed, scratch, call);
  Served& served = this->served(call);
  if (served.known && served.algorithm) return;
  choose_product(product_alone(timed), scratch, scratch_bytes);
  if (served.known) return;
  const std::optional<Algorithms::Candidate> best = algorithms_.fastest(served, operands_of(call));
  if (!best) return algorithms_.settle(served, std::nullopt);
  const bool is_apart = is_faster_apart(timed, call, served, best->algorithm, scratch, scratch_bytes);
  algorithms_.settle_timed(served, is_apart ? std::nullopt : std::optional(best->algorithm));
}

template <typename Op>
bool CublasProducts::is_faster_apart(const Op& op, const Call& fused, Served& served,
                                     const cublasLtMatmulAlgo_t& algorithm, std::byte* scratch, int64_t scratch_bytes) {
  float together_milliseconds = std::numeric_limits<float>::infinity();
  float apart_milliseconds = together_milliseconds;
  for (int round = 0; round < Algorithms::timing_rounds; ++round) {
    together_milliseconds = std::min(together_milliseconds, algorithms_.milliseconds([&] {
                                       algorithms_.start(served, operands_of(fused), algorithm);
                                       finish(op, fused, stream_);
                                     }));
    apart_milliseconds = std::min(apart_milliseconds, algorithms_.milliseconds([&] {
                                    run_product(product_alone(op), scratch, scratch_bytes);
                                    run_rest(op, stream_, scratch);
                                  }));
  }
  return apart_milliseconds < Algorithms::clearly * together_milliseconds;
}

template <typename Op>
void CublasProducts::choose_product(const Op& op, std::byte* scratch, int64_t scratch_bytes) {
  const Call call = call_of(op, scratch, scratch_bytes);
  algorithms_.choose(served(call), operands_of(call));
}

Served& CublasProducts::served(const Call& call) {
  const ProductKey key = key_of(call);
  const auto [place, is_new] = served_.try_emplace(key);
  Served& served = place->second;
  if (is_new) describe(key, call, served);
  if (call.bias != nullptr) served.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  if (call.pre_activation.given()) served.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.pre_activation.data);
  if (is_new) algorithms_.look_up(served);  // which asks the library, and that looks at the pointers' alignment
  return served;
}

}  // namespace

std::unique_ptr<Products> make_products(Stream stream, const std::string& algorithm_cache) {
  return std::make_unique<CublasProducts>(stream, algorithm_cache);
}

}  // namespace gptrain
