// Device memory of the library's attention, in bytes.
#include <cstdint>

#include "catch.h"
#include "ops/fused_attention_policy.h"

using namespace gptrain;

TEST_CASE("attention's gradients without fixed bits take less memory of a GPU") {
  AttentionBackward op{};
  op.batch = 4;
  op.sequence_length = 2048;
  op.num_heads = op.num_kv_heads = 12;
  op.head_size = 64;
  op.q = Matrix(nullptr, DType::bf16, 4 * 2048, 12 * 64);
  const int64_t fixed = fused_attention_scratch_bytes(op);
  CHECK(fixed == fused_attention_overhead_bytes + 4 * 12 * (2048 * 2048 * 2 + 2048 * 4));
  op.fixed_bits = false;
  CHECK(fused_attention_scratch_bytes(op) == fused_attention_overhead_bytes + 4 * 12 * (2048 * 64 * 4 + 2048 * 4));
}
