#pragma once

#include <cstdint>

// Returns the number of calls of operator new in this test binary so far, by all threads.
int64_t num_allocations();
