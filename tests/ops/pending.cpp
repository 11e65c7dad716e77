#include "ops/cpu/linear.h"
#include "ops/cpu/scratch.h"
#include "ops/footprint.h"
namespace gptrain {
#define X(Op) \
  Footprint footprint(const Op& op, const Target& t) { return {0, 0, 0, cpu_scratch_bytes(op, t.num_threads)}; }
GPTRAIN_FOR_EACH_OP(X)
}  // namespace gptrain
