// Counts what any thread of the test binary allocates with operator new.
#pragma once

#include <cstdint>

namespace gptrain::test {

int64_t num_allocations();

}  // namespace gptrain::test
