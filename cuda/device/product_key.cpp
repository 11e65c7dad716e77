#include "device/product_key.h"

#include <fmt/format.h>

namespace gptrain::inline cuda {

std::string ProductKey::text() const {
  return fmt::format("{}{} m={} n={} k={} ld={},{},{} align={},{},{} {} to {}{}{}", transpose_a ? 'T' : 'N',
                     transpose_b ? 'T' : 'N', m, n, k, lda, ldb, ldd, align_a, align_b, align_d, dtype_name(operands),
                     dtype_name(result), epilogue_names[epilogue].text,
                     ld_aux > 0 ? fmt::format(" ld={}", ld_aux) : "");
}

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

LtOperands operands_of(const Call& call) {
  const Product& product = call.product;
  return {product.b.data, product.a.data, product.c.data, product.accumulate, call.workspace};
}

Expected expected_of(const Call& call) {
  Expected expected{.product = {.product = call.product, .pre_activation = call.pre_activation}, .bias_gradient = {}};
  // Uses the bias as the library gets it, which may be rounded.
  if (call.product.bias.given())
    expected.product.product.bias = Matrix(call.bias, call.product.c.dtype, 1, call.product.c.cols);
  if (call.epilogue == Epilogue::gelu || call.epilogue == Epilogue::gelu_bias) {
    expected.product.end = ProductEnd::gelu;
  } else if (call.epilogue == Epilogue::gelu_gradient) {
    expected.product.end = ProductEnd::gelu_slope;
  } else if (call.epilogue == Epilogue::bias_gradient) {
    expected.bias_gradient = Matrix(call.bias, call.product.c.dtype, 1, call.product.c.rows);
  }
  return expected;
}

void describe(const ProductKey& key, const Call& call, Served& served) {
  served.text = call.text();
  served.name = key.text();
  served.otherwise = is_more_than_bias(key.epilogue) ? run_unfused : own_kernel;
  served.depth = key.k;
  served.align_a = key.align_a;
  served.align_b = key.align_b;
  served.align_d = key.align_d;
  served.begin();
  const cublasOperation_t plain = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  served.set(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_a ? transposed : plain);
  served.set(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_b ? transposed : plain);
  served.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_names[key.epilogue].library);
  if (key.ld_aux > 0) served.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ld_aux);
  served.lay_out(served.a, key.operands, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k, key.lda);
  served.lay_out(served.b, key.operands, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n, key.ldb);
  served.lay_out(served.d, key.result, key.m, key.n, key.ldd);
}

void set_pointers(const Call& call, Served& served) {
  if (call.bias != nullptr) served.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  if (call.pre_activation.given()) served.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.pre_activation.data);
}

}  // namespace gptrain::cuda
