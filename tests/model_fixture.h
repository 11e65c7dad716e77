// Small configs and random micro-batches for tests that run whole training steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "comm/world.h"
#include "config/axis_sizes.h"
#include "config/load.h"
#include "model/micro_batch.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain::testing {

enum class Family { gpt2, llama };

// Returns a config whose sizes are not multiples of anything convenient. `overrides` as on the command line.
inline RunConfig small_config(Family family, const std::vector<std::string>& overrides = {}, int64_t world_size = 1) {
  const std::string model =
      family == Family::gpt2
          ? R"("num_layers": 3, "hidden_size": 36, "num_heads": 3, "vocab_size": 101, "sequence_length": 19,
               "activation": "gelu_tanh")"
          : R"("num_layers": 3, "hidden_size": 40, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 52, "vocab_size": 101,
               "sequence_length": 19, "norm": "rmsnorm", "activation": "swiglu", "positions": "rope", "qk_norm": true,
               "bias": false, "tied_head": false)";
  const std::string text = R"({"model": {)" + model + R"(},
    "data": {"train": [{"path": "none"}]},
    "batch": {"global": 4, "micro": 4},
    "precision": {"compute": "fp32"},
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "schedule": {"type": "constant"},
    "memory": {"loss_chunk_tokens": 23},
    "run": {"steps": 100, "seed": 7, "out": "none", "device": "cpu"}})";
  return parse_config(text, overrides, "small_config", world_size);
}

// Returns one of the optimizer's f32 state columns; on a device, an address there.
inline float* column(const StateSlice& piece, size_t index) {
  return reinterpret_cast<float*>(piece.columns.at(index));
}

// The groups of a single rank.
struct OneRank {
  explicit OneRank(const RunConfig& config) : world(std::move(make_local_world(1).front())), groups(config, *world) {}

  std::unique_ptr<World> world;
  RankGroups groups;
};

// Random batches: sample n is a fixed function of n, whatever the micro-batch. Tokens follow a noisy repeating pattern,
// so that there is something to learn.
class RandomBatches : public MicroBatchSource {
 public:
  // Returns the batches of one of `data_size` data ranks, which take micro-batches in turn. `context_rank`: number of
  // the rank among those that share sequences, whose tokens and targets it has.
  explicit RandomBatches(const RunConfig& config, int64_t first_sample = 0, int64_t data_rank = 0,
                         int64_t data_size = 1, int64_t context_rank = 0)
      : shape_{.batch = config.batch.micro,
               .sequence_length = config.model.sequence_length,
               .with_documents = config.data.mask_documents,
               .context = context_rank_at(config.parallel, context_rank)},
        vocabulary_(config.model.vocab_size),
        next_sample_(first_sample + data_rank * shape_.batch),
        skipped_((data_size - 1) * shape_.batch),
        memory_(static_cast<size_t>(shape_.bytes())),
        view_(MicroBatch::at(memory_.data(), shape_)) {}
  // Returns the batches of a rank.
  RandomBatches(const RunConfig& config, int64_t first_sample, const RankGroups& groups)
      : RandomBatches(config, first_sample, groups.sample_rank(), groups.num_sample_ranks(),
                      groups.on_context_axis().rank) {}

  const MicroBatch& next() override {
    const TokenRows own = shape_.token_rows();
    for (int64_t b = 0; b < shape_.batch; ++b, ++next_sample_) {
      view_.sample_ids[b] = next_sample_;
      int64_t document_start = 0;
      for (int64_t t = 0; t < shape_.sequence_length; ++t) {
        if (const int64_t row = own.row(t); row >= 0) {
          view_.tokens[b * own.length + row] = token(t);
          view_.targets[b * own.length + row] = token(t + 1);
        }
        if (view_.document_starts == nullptr) continue;
        // Documents of seven tokens, which begin at other places in each sample.
        if (t > 0 && (next_sample_ * 5 + t) % 7 == 0) document_start = t;
        view_.document_starts[b * shape_.sequence_length + t] = static_cast<int32_t>(document_start);
      }
    }
    next_sample_ += skipped_;
    return view_;
  }

 private:
  int32_t token(int64_t t) const {
    const auto words = philox({1234, 5678}, {static_cast<uint32_t>(next_sample_), static_cast<uint32_t>(t), 0, 0});
    const auto noise = static_cast<int64_t>(words[0] % 5);
    return static_cast<int32_t>((next_sample_ * 13 + t * 7 + noise) % vocabulary_);
  }

  const MicroBatchShape shape_;
  int64_t vocabulary_, next_sample_, skipped_;
  std::vector<std::byte> memory_;
  MicroBatch view_;
};

}  // namespace gptrain::testing
