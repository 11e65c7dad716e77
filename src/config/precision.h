// The section `precision` of a run config.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/fp8.h"

namespace gptrain::inline config {

struct PrecisionConfig {
  DType compute = DType::f32;           // f32, bf16 or f16: weights, activations and matrix products
  DType residual = DType::f32;          // the residual stream: f32 or `compute` (the default)
  DType reduce = DType::f32;            // gradients while they are summed over data ranks
  DType gradients = DType::f32;         // with `pure`: gradients that a rank keeps, f32 or bf16
  DType linears = DType::f32;           // products of the blocks' linears: `compute` (the default), or f8e4m3 for FP8
  DType weight_gradients = DType::f32;  // operands of the blocks' weight-gradient products: `linears` or narrower
  int64_t loss_scale = 65'536;          // f16: initial loss scale, a power of two
  int64_t loss_scale_window = 2000;
  int64_t amax_history = 0;  // FP8: steps whose amaxes give a tensor's scale (delayed scaling); 0: its own amax
  bool pure = false;         // "compute": "bf16-pure": bf16 without fp32 master weights, except for norms

  bool scales_loss() const { return compute == DType::f16; }
  bool has_fp8() const { return is_fp8(linears) || is_fp8(weight_gradients); }
};

}  // namespace gptrain::config
