// Products whose sums cuBLASLt takes in parts (split-K).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cublasLt.h>

namespace gptrain {

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
