// Epilogues of cuBLASLt products.
//
// Rules for 16-bit operands: GELU_AUX is the tanh form; its auxiliary matrix is the pre-activation, bias included, in
// D's dtype and order, with a leading dimension that 8 divides. DGELU multiplies D by GELU's slope at such a matrix.
// BGRADB sums B as multiplied, which for a weight's gradient is dy, over the depth: the result is [out], one element
// per column of D, in D's dtype. BGRADB overwrites this result, even if D is accumulated. (products.cpp explains the
// letters.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <cublasLt.h>
#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/enum_array.h"
#include "kernels/run.h"
#include "kernels/tiled_product.h"
#include "ops/gpu_scratch.h"
#include "unfused.h"

namespace gptrain::inline cuda {

constexpr uintptr_t most_alignment = 16;  // bytes: the widest access of any kernel

inline uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min(most_alignment, address & (~address + 1)));
}

// Returns the matrix's stride; the stride of a single row is meaningless and replaced by its length.
inline int64_t leading_dimension(const Matrix& matrix) { return matrix.rows > 1 ? matrix.stride : matrix.cols; }

// Operation of the library on the product before it is stored.
enum class Epilogue : uint8_t { none, bias, gelu, gelu_bias, gelu_gradient, bias_gradient };

struct EpilogueName {
  std::string_view text;  // suffix of a product's name in records
  cublasLtEpilogue_t library;
};
inline constexpr EnumArray<Epilogue, EpilogueName, 6> epilogue_names = {
    EpilogueName{"", CUBLASLT_EPILOGUE_DEFAULT},
    EpilogueName{" bias", CUBLASLT_EPILOGUE_BIAS},
    EpilogueName{" gelu", CUBLASLT_EPILOGUE_GELU_AUX},
    EpilogueName{" bias gelu", CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
    EpilogueName{" gelu gradient", CUBLASLT_EPILOGUE_DGELU},
    EpilogueName{" bias gradient", CUBLASLT_EPILOGUE_BGRADB}};

inline bool is_more_than_bias(Epilogue epilogue) { return epilogue > Epilogue::bias; }

// One op's product, with cuBLASLt's workspace.
struct Call {
  std::string_view op;
  Product product;
  Epilogue epilogue = Epilogue::none;
  void* bias = nullptr;        // in the result's dtype, aligned: bias to add, or destination of its gradient
  Matrix pre_activation = {};  // given if the epilogue needs one
  std::byte* workspace = nullptr;

  std::string text() const {
    return fmt::format("{}, [{}, {}] x [{}, {}] in {}", op, product.c.rows, product.depth(), product.depth(),
                       product.c.cols, dtype_name(product.a.dtype));
  }
};

// Returns true if the library's epilogues can use the pre-activation matrix.
inline bool takes_pre_activation(const Matrix& matrix) {
  return dtype_bytes(matrix.dtype) == 2 && leading_dimension(matrix) % fused_activation_multiple == 0 &&
         matrix.cols % fused_activation_multiple == 0 && alignment_of(matrix.data) == most_alignment;
}
inline bool may_fuse(const LinearForward& op) { return takes_pre_activation(op.pre_activation); }
inline bool may_fuse(const LinearBackwardInput& op) { return takes_pre_activation(op.pre_activation); }
inline bool may_fuse(const LinearBackwardWeight& op) {
  return dtype_bytes(op.dy.dtype) == 2 && op.dy.cols % fused_activation_multiple == 0 &&
         op.x.cols % fused_activation_multiple == 0;
}

// Adds the op's full epilogue to `call`, which describes the product and its bias.
inline void fuse(const LinearForward& op, std::byte*, Call& call) {
  call.epilogue = op.bias.given() ? Epilogue::gelu_bias : Epilogue::gelu;
  call.pre_activation = op.pre_activation;
}
inline void fuse(const LinearBackwardInput& op, std::byte*, Call& call) {
  call.epilogue = Epilogue::gelu_gradient;
  call.pre_activation = op.pre_activation;
}
inline void fuse(const LinearBackwardWeight& op, std::byte* scratch, Call& call) {
  call.epilogue = Epilogue::bias_gradient;
  const bool in_place = !op.accumulate && alignment_of(op.d_bias.data) == most_alignment;
  call.bias = in_place ? op.d_bias.data : scratch + gpu_bias_gradient_offset(op);
}

// Moves the bias gradient from the epilogue's output to its destination.
inline void finish(const LinearForward&, const Call&, Stream) {}
inline void finish(const LinearBackwardInput&, const Call&, Stream) {}
inline void finish(const LinearBackwardWeight& op, const Call& call, Stream stream) {
  if (call.bias == op.d_bias.data) return;
  const Matrix sums(call.bias, op.d_bias.dtype, 1, op.d_bias.cols);
  if (op.accumulate) return cuda_run(Add{sums, op.d_bias}, stream);
  cuda_run(Cast{sums, op.d_bias}, stream);
}

// Returns the op for timing, which leaves the bias gradient unchanged.
template <typename Op>
Op for_timing(const Op& op, std::byte*) {
  return op;
}
inline LinearBackwardWeight for_timing(const LinearBackwardWeight& op, std::byte* scratch) {
  LinearBackwardWeight timed = op;
  if (op.d_bias.given()) timed.d_bias.data = scratch + gpu_bias_gradient_offset(op);
  return timed;
}

}  // namespace gptrain::cuda
