// FP8 products by cuBLASLt.
//
// To cuBLASLt, which knows matrices by columns (see products.cpp), c = a b^T is D = c^T [n, m] = (b as stored)^T times
// (a as stored): its A is our b, [k, n] by columns, transposed; its B our a, [k, m], as it is. That is the one form in
// which Ada's and Hopper's tensor cores take FP8 factors. The scales of A and B are read on the device when the product
// runs. Fast accumulation keeps sums in the tensor cores, to 14 bits; without it they are moved to f32 registers on the
// way, which costs speed: it is for forward products; gradients, which are sums of more and smaller terms, do without.
#include "scaled_products.h"

#include <array>
#include <compare>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "device/cublas.h"
#include "device/status.h"
#include "ops/check.h"
#include "ops/gpu_scratch.h"
#include "ops/shape_text.h"

namespace gptrain {
namespace {

constexpr uint32_t operand_alignment = 16;

void check_cublas(cublasStatus_t status, const ScaledProduct& op) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::device, "{}, {}: cuBLASLt error {} ({})", ScaledProduct::name, shape_text(op),
                cublasLtGetStatusString(status), cublasLtGetStatusName(status));
  }
}

// What an algorithm is chosen for: all operands are alike in their alignment.
struct Key {
  int64_t m, n, k;
  int64_t lda, ldb, ldd;
  DType a, b, d;
  bool bias;
  auto operator<=>(const Key&) const = default;
};

Key key_of(const ScaledProduct& op) {
  return {.m = op.b.rows,
          .n = op.a.rows,
          .k = op.a.cols,
          .lda = op.b.stride,
          .ldb = op.a.stride,
          .ldd = op.c.stride,
          .a = op.b.dtype,
          .b = op.a.dtype,
          .d = op.c.dtype,
          .bias = op.bias.given()};
}

// The library's descriptors of a product, and the algorithm once there is one.
struct Served {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

class CublasScaledProducts final : public ScaledProducts {
 public:
  explicit CublasScaledProducts(Stream stream) : stream_(stream) {}
  ~CublasScaledProducts() override {
    if (library_ != nullptr) cublasLtDestroy(library_);
  }

  void run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) override;

 private:
  void describe(const Key& key, const ScaledProduct& op, Served& served) const;
  void set_addresses(const ScaledProduct& op, Served& served) const;
  std::vector<cublasLtMatmulAlgo_t> candidates(const ScaledProduct& op, Served& served) const;
  cublasStatus_t start(const ScaledProduct& op, Served& served, const cublasLtMatmulAlgo_t& algorithm,
                       std::byte* workspace) const;

  Stream stream_;
  cublasLtHandle_t library_ = nullptr;  // made by the first product
  std::map<Key, Served> served_;
};

template <typename Value>
void set(const ScaledProduct& op, Served& served, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(&served.operation, attribute, &value, sizeof value), op);
}

void CublasScaledProducts::run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) {
  require_scratch(ScaledProduct::name, gpu_scratch_bytes(op), scratch_bytes);
  if (reinterpret_cast<uintptr_t>(scratch) % workspace_alignment != 0)
    throw std::logic_error(fmt::format("{}: the scratch memory is not aligned to 256 bytes", ScaledProduct::name));
  if (library_ == nullptr) check_cublas(cublasLtCreate(&library_), op);
  const Key key = key_of(op);
  const auto [place, is_new] = served_.try_emplace(key);
  Served& served = place->second;
  if (is_new) describe(key, op, served);
  set_addresses(op, served);
  if (served.algorithm) return check_cublas(start(op, served, *served.algorithm, scratch), op);
  for (const cublasLtMatmulAlgo_t& algorithm : candidates(op, served)) {
    if (start(op, served, algorithm, scratch) != CUBLAS_STATUS_SUCCESS) continue;
    served.algorithm = algorithm;
    return;
  }
  throw Error(ExitCode::device,
              "{}, {}: cuBLASLt has no algorithm for it on this device; precision.linears = \"bf16\" does without",
              ScaledProduct::name, shape_text(op));
}

void CublasScaledProducts::describe(const Key& key, const ScaledProduct& op, Served& served) const {
  check_cublas(cublasLtMatmulDescInit(&served.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), op);
  set(op, served, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(op, served, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  const bool forward = key.a == DType::f8e4m3 && key.b == DType::f8e4m3 && key.d == DType::bf16;
  set(op, served, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(forward ? 1 : 0));
  if (key.bias) {
    set(op, served, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(op, served, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& of, DType dtype, int64_t rows, int64_t cols, int64_t ld) {
    check_cublas(
        cublasLtMatrixLayoutInit(&of, cuda_type(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
        op);
  };
  // Layouts are of the memory, before its operation.
  layout(served.a, key.a, key.k, key.m, key.lda);
  layout(served.b, key.b, key.k, key.n, key.ldb);
  layout(served.d, key.d, key.m, key.n, key.ldd);
}

void CublasScaledProducts::set_addresses(const ScaledProduct& op, Served& served) const {
  set(op, served, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, op.b_scale.data);
  set(op, served, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, op.a_scale.data);
  if (op.bias.given()) set(op, served, CUBLASLT_MATMUL_DESC_BIAS_POINTER, op.bias.data);
}

// Those that the library thinks fastest, best first, within the planned workspace; sums of parts, if any, in f32 by a
// step of their own.
std::vector<cublasLtMatmulAlgo_t> CublasScaledProducts::candidates(const ScaledProduct& op, Served& served) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), op);
  };
  check_cublas(cublasLtMatmulPreferenceInit(&preference), op);
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(gpu_product_workspace_bytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, operand_alignment);
  std::array<cublasLtMatmulHeuristicResult_t, most_candidates> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_, &served.operation, &served.a, &served.b, &served.d, &served.d,
                                     &preference, most_candidates, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublas(status, op);
  std::vector<cublasLtMatmulAlgo_t> found;
  for (int i = 0; i < count; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        static_cast<int64_t>(result.workspaceSize) <= gpu_product_workspace_bytes &&
        sums_are_whole(result.algo, op.a.cols))
      found.push_back(result.algo);
  }
  return found;
}

// Queues the product, or nothing where the library does not take it with this algorithm, for whatever reason. Throws
// when the device has failed for good.
cublasStatus_t CublasScaledProducts::start(const ScaledProduct& op, Served& served,
                                           const cublasLtMatmulAlgo_t& algorithm, std::byte* workspace) const {
  const float alpha = 1;
  const float beta = op.accumulate ? 1.0F : 0.0F;
  const cublasStatus_t status = cublasLtMatmul(library_, &served.operation, &alpha, op.b.data, &served.a, op.a.data,
                                               &served.b, &beta, op.c.data, &served.d, op.c.data, &served.d, &algorithm,
                                               workspace, static_cast<size_t>(gpu_product_workspace_bytes), stream_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();  // else the next kernel would be blamed
    if (const cudaError_t stays = cudaGetLastError(); stays != cudaSuccess) check_cuda(stays, shape_text(op));
  }
  return status;
}

}  // namespace

std::unique_ptr<ScaledProducts> make_scaled_products(Stream stream) {
  return std::make_unique<CublasScaledProducts>(stream);
}

}  // namespace gptrain
