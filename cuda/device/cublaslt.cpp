// Defines cuBLASLt's functions as its header declares them.
#include <cublasLt.h>
#include <string>

#include "device/late_library.h"

namespace {

const gptrain::LateLibrary& cublaslt() {
  static const gptrain::LateLibrary library("cuBLASLt", "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  return library;
}

}  // namespace

extern "C" {

GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
GPTRAIN_FORWARD(cublaslt, const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
GPTRAIN_FORWARD(cublaslt, const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
GPTRAIN_FORWARD(cublaslt, size_t, cublasLtGetVersion, (), ())
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmul,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                 cublasLtMatrixLayout_t a_desc, const void* b, cublasLtMatrixLayout_t b_desc, const void* beta,
                 const void* c, cublasLtMatrixLayout_t c_desc, void* d, cublasLtMatrixLayout_t d_desc,
                 const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream),
                (handle, desc, alpha, a, a_desc, b, b_desc, beta, c, c_desc, d, d_desc, algo, workspace,
                 workspace_bytes, stream))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulAlgoCheck,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                 cublasLtMatmulHeuristicResult_t* result),
                (handle, desc, a, b, c, d, algo, result))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                 cublasLtMatmulHeuristicResult_t results[], int* found),
                (handle, desc, a, b, c, d, preference, wanted, results, found))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
                (const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                 size_t bytes, size_t* written),
                (algo, attribute, value, bytes, written))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulDescInit_internal,
                (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
                (desc, size, compute, scale))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulDescSetAttribute,
                (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
                (desc, attribute, value, bytes))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatrixLayoutGetAttribute,
                (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, void* value, size_t bytes,
                 size_t* written),
                (layout, attribute, value, bytes, written))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatrixLayoutInit_internal,
                (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols,
                 int64_t ld),
                (layout, size, type, rows, cols, ld))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulPreferenceInit_internal,
                (cublasLtMatmulPreference_t preference, size_t size), (preference, size))
GPTRAIN_FORWARD(cublaslt, cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                 const void* value, size_t bytes),
                (preference, attribute, value, bytes))

}  // extern "C"
