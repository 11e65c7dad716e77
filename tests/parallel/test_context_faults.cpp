// Faults of ranks that share sequences, planted in their ops, show in the comparison with one rank.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "changed_ops.h"
#include "layouts.h"
#include "shared_sequences.h"

namespace test_context_faults {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Faults = std::vector<std::pair<const char*, Wrapping>>;

// Memory of zeros that no rank reads as a result.
float* some_floats() {
  thread_local std::vector<float> floats(1 << 16);
  return floats.data();
}

void check_found(const Overrides& layout, const Faults& faults) {
  const Overrides model = {"model.attention_sinks=true", "data.mask_documents=true"};
  const RunConfig alone = shared_config(Family::llama, 1, model, {});
  const RunConfig config = shared_config(Family::llama, 2, model, layout);
  const GlobalState start = train_on_ranks(alone, 1, 10).state;
  const Outcome one = train_on_ranks(alone, 1, 1, &start, 1000);
  const auto difference_with = [&](const Wrapping& wrapping) {
    return difference(make_spec(config.model), one, train_on_ranks(config, 2, 1, &start, 1000, wrapping));
  };
  REQUIRE(difference_with({}).small());
  for (const auto& [name, wrapping] : faults) {
    INFO(name);
    CHECK_FALSE(difference_with(wrapping).small());
  }
}

}  // namespace

TEST_CASE("faults of ring attention are found") {
  // 20 tokens in four runs of five: the ranks have the outer and the inner ones.
  const auto is_other_ranks = [](const AttentionPart& part, int64_t rank) {
    const bool is_outer = part.first_key == 0 || part.first_key == 15;
    return is_outer == (rank == 1);
  };
  const Faults faults = {
      {"parts merged without their log-sum-exps",
       changing<MergeAttention>([](auto& op, int64_t) { op.part_lse.data = op.lse.data; })},
      {"a log-sum-exp that a merge leaves as it was", changing<MergeAttention>([](auto& op, int64_t) {
         Matrix kept(some_floats(), DType::f32, op.lse.rows, op.lse.cols);
         for (int64_t row = 0; row < op.lse.rows; ++row)
           std::copy_n(op.lse.template as<const float>() + row * op.lse.stride, op.lse.cols,
                       kept.as<float>() + row * kept.stride);
         op.lse = kept;
       })},
      {"gradients of another rank's keys lost", changing<AttentionPartBackward>([=](auto& op, int64_t rank) {
         if (is_other_ranks(op.part, rank)) op.of.dk = Matrix(some_floats(), DType::f32, op.of.dk.rows, op.of.dk.cols);
       })},
      {"another dropout in parts of backward",
       changing<AttentionPartBackward>([](auto& op, int64_t) { op.of.dropout.first_head += 1; })},
      {"a sink of other queries left out", changing<AttentionPartBackward>([](auto& op, int64_t rank) {
         if (rank == 1 && op.part.first_query > 5 && op.of.d_sinks.given()) op.of.sinks = op.of.d_sinks = {};
       })},
      {"a sink in each part", changing<AttentionPartForward>([=](auto& op, int64_t rank) {
         thread_local Matrix sinks;
         if (op.of.sinks.given()) sinks = op.of.sinks;
         if (is_other_ranks(op.part, rank)) op.of.sinks = sinks;
       })},
      {"the positions of one run in the second run", changing<QueryKeyForward>([](auto& op, int64_t) {
         op.token_rows.second = op.token_rows.first + op.token_rows.first_length;
       })},
      {"a target from behind a cut", changing<CrossEntropy>([](auto& op, int64_t) {
         thread_local std::vector<int32_t> targets;
         targets.assign(op.targets, op.targets + op.logits.rows);
         if (targets.size() > 5) targets[4] = targets[5];
         op.targets = targets.data();
       })}};
  check_found({"parallel.context=2", "parallel.context_method=ring", "batch.micro=2"}, faults);
}

TEST_CASE("faults of attention by heads are found") {
  const Faults faults = {
      {"sinks' gradients of the first heads", changing<AddSums>([](auto& op, int64_t) {
         if (op.sums.cols == 2) op.first = 0;
       })},
      {"dropout of the first heads on all ranks",
       changing<AttentionForward>([](auto& op, int64_t) { op.dropout.first_head = 0; })},
      {"documents that one rank does not mask", changing<AttentionForward>([](auto& op, int64_t rank) {
         if (rank == 1) op.mask.document_starts = nullptr;
       })},
      {"positions that begin anew on each rank",
       changing<QueryKeyForward>([](auto& op, int64_t) { op.token_rows.first = 0; })}};
  check_found({"parallel.context=2", "parallel.context_method=heads", "batch.micro=2"}, faults);
}

}  // namespace test_context_faults
