#include "cublaslt_stand_in.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/dtype.h"
#include "base/fp8.h"
#include "streams.h"

using namespace gptrain;
using cublaslt_stand_in::Behaviour;

namespace {

cublaslt_stand_in::Controls controls;
std::atomic<int> heuristics, checks, products, wrong_uses;

// The contents of the library's opaque structs.
struct Layout {
  uint64_t type, rows, cols;
  int64_t ld;
};
struct Operation {
  int32_t transpose_a, transpose_b;
  uint32_t epilogue, bias_type;
  void* bias;
  void* aux;
  int64_t aux_ld;
  const float *a_scale, *b_scale;
  int8_t fast_accumulation;
};
struct Preference {
  uint64_t workspace_bytes;
  uint32_t reduction_schemes;
};
struct Algorithm {
  uint64_t id, behaviour;
  int64_t microseconds;
  uint64_t workspace_bytes;
};

template <typename Contents, typename Opaque>
Contents& contents(Opaque* opaque) {
  static_assert(sizeof(Contents) <= sizeof(Opaque));
  return *reinterpret_cast<Contents*>(opaque);
}
template <typename Contents, typename Opaque>
const Contents& contents(const Opaque* opaque) {
  static_assert(sizeof(Contents) <= sizeof(Opaque));
  return *reinterpret_cast<const Contents*>(opaque);
}

template <typename Field>
cublasStatus_t set(Field& field, const void* value, size_t bytes) {
  if (bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Value>
cublasStatus_t get(Value value, void* field, size_t bytes, size_t* written) {
  if (bytes != sizeof value) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field, &value, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

// A matrix of any type, column-major.
struct Values {
  void* data;
  uint64_t type;
  int64_t ld;

  double at(int64_t row, int64_t col) const {
    const int64_t i = row + col * ld;
    switch (type) {
      case CUDA_R_16BF:
        return to_float(static_cast<const bf16*>(data)[i]);
      case CUDA_R_16F:
        return to_float(static_cast<const f16*>(data)[i]);
      case CUDA_R_8F_E4M3:
        return to_float(static_cast<const f8e4m3*>(data)[i]);
      case CUDA_R_8F_E5M2:
        return to_float(static_cast<const f8e5m2*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }
  void put(int64_t row, int64_t col, double value) const {
    const int64_t i = row + col * ld;
    const auto rounded = static_cast<float>(value);
    if (type == CUDA_R_16BF) {
      static_cast<bf16*>(data)[i] = to_bf16(rounded);
    } else if (type == CUDA_R_16F) {
      static_cast<f16*>(data)[i] = to_f16(rounded);
    } else {
      static_cast<float*>(data)[i] = rounded;
    }
  }
};

double tanh_of_gelu(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
double gelu(double x) { return 0.5 * x * (1 + tanh_of_gelu(x)); }
double gelu_slope(double x) {
  const double t = tanh_of_gelu(x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

struct Product {
  Operation operation;
  Values a, b, d;
  int64_t m, n, k;
  bool accumulate;
  Algorithm algorithm;
  int number;

  double sum(int64_t row, int64_t col) const {
    const bool transposed_a = operation.transpose_a == CUBLAS_OP_T, transposed_b = operation.transpose_b == CUBLAS_OP_T;
    const int64_t depth = algorithm.behaviour == static_cast<uint64_t>(Behaviour::omits_end) ? k - 1 : k;
    double total = 0;
    for (int64_t i = 0; i < depth; ++i)
      total += (transposed_a ? a.at(i, row) : a.at(row, i)) * (transposed_b ? b.at(col, i) : b.at(i, col));
    if (operation.a_scale != nullptr) total *= static_cast<double>(*operation.a_scale) * *operation.b_scale;
    return total;
  }

  double finished(double value, int64_t row, int64_t col) const {
    const Values bias{operation.bias, operation.bias_type, 1}, aux{operation.aux, d.type, operation.aux_ld};
    switch (operation.epilogue) {
      case CUBLASLT_EPILOGUE_BIAS:
        return value + bias.at(row, 0);
      case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        value += bias.at(row, 0);
        [[fallthrough]];
      case CUBLASLT_EPILOGUE_GELU_AUX:
        aux.put(row, col, value);
        return gelu(value);
      case CUBLASLT_EPILOGUE_DGELU:
        return value * gelu_slope(aux.at(row, col));
      default:
        return value;
    }
  }

  void run() const {
    for (int64_t col = 0; col < n; ++col) {
      for (int64_t row = 0; row < m; ++row) {
        const bool last = row == m - 1 && col == n - 1;
        if (last && algorithm.behaviour == static_cast<uint64_t>(Behaviour::leaves_last)) continue;
        double value = finished(sum(row, col), row, col);
        if (last && algorithm.behaviour == static_cast<uint64_t>(Behaviour::varies) && number % 2 == 0)
          value *= 1.0 + 1.0 / 128;
        d.put(row, col, accumulate ? d.at(row, col) + value : value);
      }
    }
    if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_columns();
    std::this_thread::sleep_for(std::chrono::microseconds(algorithm.microseconds));
  }

  // Sums B as multiplied over the depth, for each column of D.
  void sum_columns() const {
    const Values sums{operation.bias, d.type, 1};
    for (int64_t col = 0; col < n; ++col) {
      double total = 0;
      for (int64_t i = 0; i < k; ++i) total += operation.transpose_b == CUBLAS_OP_T ? b.at(col, i) : b.at(i, col);
      sums.put(col, 0, total);
    }
  }
};

Algorithm algorithm_of(int number) {
  const cublaslt_stand_in::Offer& offer = controls.offers[number];
  const bool is_large = offer.behaviour == Behaviour::needs_too_much;
  return {.id = static_cast<uint64_t>(number),
          .behaviour = static_cast<uint64_t>(offer.behaviour),
          .microseconds = offer.microseconds,
          .workspace_bytes = is_large ? uint64_t{1} << 40 : 1024};
}

}  // namespace

extern "C" {

void cublaslt_stand_in_begin(const cublaslt_stand_in::Controls* next) {
  controls = *next;
  heuristics = checks = products = wrong_uses = 0;
}
cublaslt_stand_in::Counts cublaslt_stand_in_counts() { return {heuristics, checks, products, wrong_uses}; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int library;
  *handle = reinterpret_cast<cublasLtHandle_t>(&library);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_OF_STAND_IN"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "a failure that the test wants"; }
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) ++wrong_uses;
  contents<Operation>(desc) = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto& operation = contents<Operation>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(operation.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(operation.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(operation.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(operation.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(operation.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(operation.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(operation.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(operation.a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(operation.b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(operation.fast_accumulation, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
  contents<Layout>(layout) = {type, rows, cols, ld};
  return static_cast<uint64_t>(ld) < rows ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, void* value, size_t bytes,
                                                size_t* written) {
  if (attribute != CUBLASLT_MATRIX_LAYOUT_TYPE) return CUBLAS_STATUS_INVALID_VALUE;
  return get(static_cast<uint32_t>(contents<Layout>(layout).type), value, bytes, written);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t) {
  contents<Preference>(preference) = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  auto& wanted = contents<Preference>(preference);
  uint32_t alignment = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(wanted.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(wanted.reduction_schemes, value, bytes);
    default:
      return set(alignment, value, bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  ++heuristics;
  if (controls.heuristic != CUBLAS_STATUS_SUCCESS) return controls.heuristic;
  *found = 0;
  for (int i = 0; i < controls.num_offers && *found < wanted; ++i) {
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {};
    contents<Algorithm>(&result.algo) = algorithm_of(i);
    result.workspaceSize = algorithm_of(i).workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
  const auto& algorithm = contents<Algorithm>(algo);
  const bool rounds_parts = algorithm.behaviour == static_cast<uint64_t>(Behaviour::rounds_parts);
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return get(static_cast<int32_t>(algorithm.id), value, bytes, written);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return get(int32_t{rounds_parts ? 2 : 1}, value, bytes, written);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return get(uint32_t{rounds_parts ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE}, value,
                 bytes, written);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  ++checks;
  result->workspaceSize = contents<Algorithm>(algo).workspace_bytes;
  return controls.check;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const auto& algorithm = contents<Algorithm>(algo);
  const auto& operation = contents<Operation>(desc);
  const auto &of_a = contents<Layout>(a_layout), &of_b = contents<Layout>(b_layout), &of_d = contents<Layout>(d_layout);
  if (controls.start != CUBLAS_STATUS_SUCCESS) return controls.start;
  if (algorithm.behaviour == static_cast<uint64_t>(Behaviour::refuses)) return CUBLAS_STATUS_EXECUTION_FAILED;
  const int64_t depth = static_cast<int64_t>(operation.transpose_a == CUBLAS_OP_T ? of_a.rows : of_a.cols);
  const int64_t depth_of_b = static_cast<int64_t>(operation.transpose_b == CUBLAS_OP_T ? of_b.cols : of_b.rows);
  if (*static_cast<const float*>(alpha) != 1 || c != d || depth != depth_of_b || workspace == nullptr ||
      workspace_bytes < algorithm.workspace_bytes)
    ++wrong_uses;
  Operation of_product = operation;
  if (of_a.type != CUDA_R_8F_E4M3 && of_a.type != CUDA_R_8F_E5M2)
    of_product.bias_type = static_cast<uint32_t>(of_d.type);
  const Product product{.operation = of_product,
                        .a = {const_cast<void*>(a), of_a.type, of_a.ld},
                        .b = {const_cast<void*>(b), of_b.type, of_b.ld},
                        .d = {d, of_d.type, of_d.ld},
                        .m = static_cast<int64_t>(of_d.rows),
                        .n = static_cast<int64_t>(of_d.cols),
                        .k = depth,
                        .accumulate = *static_cast<const float*>(beta) == 1,
                        .algorithm = algorithm,
                        .number = products++};
  stream->add([product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
