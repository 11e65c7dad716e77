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

TEST_CASE("attention of a GPU's library is dense or in a band") {
  AttentionForward op{};
  op.batch = 1;
  op.sequence_length = 1024;
  op.num_heads = op.num_kv_heads = 2;
  op.head_size = 64;
  op.q = Matrix(nullptr, DType::bf16, 1024, 2 * 64);
  const auto served = [&](const char* word) {
    op.mask.pattern = parse_attention_pattern(word).value_or(AttentionPattern{});
    return fused_attention_shape(op);
  };
  CHECK(served("dense"));
  CHECK(served("band:256"));
  CHECK_FALSE(served("band:256+global:4"));
  CHECK_FALSE(served("strided:128"));
  CHECK_FALSE(served("columns:128"));
  CHECK_FALSE(served("fixed:128,16"));
  op.softcap = 50;
  CHECK_FALSE(served("dense"));
}
