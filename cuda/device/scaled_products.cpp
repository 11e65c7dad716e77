// FP8 products by cuBLASLt.
//
// cuBLASLt works on column-major matrices (see products.cpp), so c = a b^T is D = c^T [n, m] = (b as stored)^T (a as
// stored): A is our b, [k, n] column-major, transposed; B is our a, [k, m], as stored. This is the only form in which
// the tensor cores of Ada and Hopper take FP8 operands. The scales of A and B are read on the device when the product
// runs. Fast accumulation keeps sums in the tensor cores with 14 bits; without it, sums move to f32 registers on the
// way, which is slower. Forward products use it; gradients, which sum more and smaller terms, do not.
#include "device/scaled_products.h"

#include <fmt/format.h>
#include <stdexcept>

#include "base/error.h"
#include "ops/check.h"
#include "ops/footprint.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr uint32_t operand_alignment = 16;

void check_workspace(const ScaledProduct& op, const std::byte* scratch, int64_t scratch_bytes) {
  require_scratch(ScaledProduct::name, gpu_scratch_bytes(op), scratch_bytes);
  if (reinterpret_cast<uintptr_t>(scratch) % workspace_alignment != 0)
    throw std::logic_error(fmt::format("{}: the scratch memory is not aligned to 256 bytes", ScaledProduct::name));
}

[[noreturn]] void refuse(const Served& served) {
  throw Error(ExitCode::machine, "{}: {}; set precision.linears = \"bf16\" to run without FP8", served.text,
              why_unserved(served.fault));
}

}  // namespace

void describe(const ScaledProduct& op, Served& served) {
  const Matrix &a = op.b, &b = op.a, &d = op.c;  // the library's letters
  const int64_t m = a.rows, n = b.rows, k = b.cols;
  served.text = fmt::format("{}, {}", ScaledProduct::name, shape_text(op));
  served.name =
      fmt::format("TN m={} n={} k={} ld={},{},{} {} x {} to {}{}", m, n, k, a.stride, b.stride, d.stride,
                  dtype_name(a.dtype), dtype_name(b.dtype), dtype_name(d.dtype), op.bias.given() ? " bias" : "");
  served.depth = k;
  served.align_a = served.align_b = served.align_d = operand_alignment;
  served.begin();
  served.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  served.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  const bool forward = a.dtype == DType::f8e4m3 && b.dtype == DType::f8e4m3 && d.dtype == DType::bf16;
  served.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(forward ? 1 : 0));
  if (op.bias.given()) {
    served.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    served.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  served.lay_out(served.a, a.dtype, k, m, a.stride);
  served.lay_out(served.b, b.dtype, k, n, b.stride);
  served.lay_out(served.d, d.dtype, m, n, d.stride);
}

void set_pointers(const ScaledProduct& op, Served& served) {
  served.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, op.b_scale.data);
  served.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, op.a_scale.data);
  if (op.bias.given()) served.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, op.bias.data);
}

LtOperands operands_of(const ScaledProduct& op, std::byte* workspace) {
  return {op.b.data, op.a.data, op.c.data, op.accumulate, workspace};
}

Expected expected_of(const ScaledProduct& op) {
  const Product product{
      .a = op.a, .b = op.b, .bias = op.bias, .c = op.c, .b_transposed = true, .accumulate = op.accumulate};
  return {.product = {.product = product, .a_scale = op.a_scale.as<float>(), .b_scale = op.b_scale.as<float>()},
          .bias_gradient = {}};
}

ScaledProducts::Key ScaledProducts::key_of(const ScaledProduct& op) {
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

void ScaledProducts::run(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) {
  check_workspace(op, scratch, scratch_bytes);
  Served& served = this->served(op);
  if (!algorithms_.run(served, operands_of(op, scratch))) refuse(served);
}

void ScaledProducts::choose(const ScaledProduct& op, std::byte* scratch, int64_t scratch_bytes) {
  check_workspace(op, scratch, scratch_bytes);
  Served& served = this->served(op);
  algorithms_.choose(served, operands_of(op, scratch), expected_of(op));
  if (!served.algorithm) refuse(served);
}

Served& ScaledProducts::served(const ScaledProduct& op) {
  const auto [entry, is_new] = served_.try_emplace(key_of(op));
  Served& served = entry->second;
  if (is_new) describe(op, served);
  set_pointers(op, served);
  return served;
}

}  // namespace gptrain::cuda
