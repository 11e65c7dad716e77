#include "ops/op_table.h"

namespace gptrain::inline ops {

OpTotals& OpTotals::operator+=(const OpTotals& other) {
  calls += other.calls;
  model_flops += other.model_flops;
  executed_flops += other.executed_flops;
  bytes_moved += other.bytes_moved;
  return *this;
}

}  // namespace gptrain::ops
