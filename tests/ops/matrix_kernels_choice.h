// Which table of matrix kernels the CPU backend's ops run, by name: "amx" or "substituted".
#pragma once

#include <string_view>

namespace gptrain::ops_test {

// False, and nothing is changed, where this machine cannot run the table. "amx" is emulated where only AMX is missing.
bool choose_matrix_kernels(std::string_view name);

}  // namespace gptrain::ops_test
