// Helpers for all cuBLASLt products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <string_view>

#include "base/dtype.h"

namespace gptrain::inline cuda {

constexpr uintptr_t workspace_alignment = 256;
constexpr int most_candidates = 24;  // most algorithms considered for a product

// Throws Error(device) unless the call succeeded. `what`: the action, for the message.
void check_cublas(cublasStatus_t status, std::string_view what);

inline cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    case DType::f8e5m2:
      return CUDA_R_8F_E5M2;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// Returns true if the algorithm sums all `depth` products. Some library versions that split a sum omit the products
// after the last whole tile of the depth (github.com/facebookexperimental/triton/pull/2767), so split sums are only for
// depths that every tile size divides.
inline bool sums_are_whole(const cublasLtMatmulAlgo_t& algorithm, int64_t depth) {
  constexpr int64_t deepest_tile = 128;
  int32_t parts = 1;
  size_t written = 0;
  const bool known = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                          sizeof parts, &written) == CUBLAS_STATUS_SUCCESS;
  return !known || parts <= 1 || depth % deepest_tile == 0;
}

}  // namespace gptrain::cuda
