// What all of cuBLASLt's products share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>
#include <string_view>

#include "base/dtype.h"

namespace gptrain {

constexpr uintptr_t workspace_alignment = 256;
constexpr int most_candidates = 24;  // algorithms that are looked at for a product

// Throws Error(device) unless the call has succeeded. `what`: the thing that was done.
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

// Whether the algorithm's sums of `depth` products are whole. Some versions that take a sum in parts leave out what is
// past the last whole tile of the depth (github.com/facebookexperimental/triton/pull/2767): parts are for depths that
// every tile divides.
inline bool sums_are_whole(const cublasLtMatmulAlgo_t& algorithm, int64_t depth) {
  constexpr int64_t deepest_tile = 128;
  int32_t parts = 1;
  size_t written = 0;
  const bool known = cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                                          sizeof parts, &written) == CUBLAS_STATUS_SUCCESS;
  return !known || parts <= 1 || depth % deepest_tile == 0;
}

}  // namespace gptrain
