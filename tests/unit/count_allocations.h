#pragma once

#include <cstdint>

// Calls of operator new in this test binary so far, by any thread.
int64_t num_allocations();
