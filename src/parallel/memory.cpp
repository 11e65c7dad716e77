#include "parallel/memory.h"

#include <numeric>

namespace gptrain {

int64_t MemoryPlan::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

}  // namespace gptrain
