// Selects the table of matrix kernels for the CPU backend's ops by name: "amx" or "substituted".
#pragma once

#include <string_view>

namespace gptrain::ops_test {

// Returns false, without a change, if this machine cannot run the table. "amx" is emulated if only AMX is missing.
bool choose_matrix_kernels(std::string_view name);

}  // namespace gptrain::ops_test
