// The memory of Adafactor's state and of its sums.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "poisoning_backend.h"

namespace test_adafactor_memory {

using namespace gptrain;
using namespace gptrain::testing;

// With few tokens, no op needs more workspace than the sums, which cover the whole model on every rank. In the state,
// each rank of a stage has a value for every row and column of the stage's matrices, and one for each element of a
// vector that it updates.
TEST_CASE("Adafactor's state and workspace are what its rows, columns and vectors need") {
  for (const SmallLayout& layout :
       {SmallLayout{1, 1, {}}, SmallLayout{1, 3, {"parallel.zero=1"}}, SmallLayout{2, 1, {}},
        SmallLayout{2, 2, {"parallel.zero=3"}}, SmallLayout{.tensor = 1, .data = 1, .overrides = {}, .pipeline = 2}}) {
    const int64_t world_size = layout.world_size();
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16-pure"}) {
      INFO(world_size << " ranks " << precision);
      const RunConfig config = config_of(layout, {precision, "optimizer.type=adafactor", "model.sequence_length=2",
                                                  "batch.micro=1", "model.vocab_size=64"});
      int64_t sums = 0;
      for (const TensorSpec& tensor : make_spec(config.model).tensors) {
        if (tensor.shape.size() < 2) continue;
        const auto matrices = static_cast<int64_t>(std::max<size_t>(tensor.sections.size(), 1));
        sums += tensor.shape[0] + matrices * tensor.shape[1];
      }
      std::mutex mutex;
      int64_t rows = 0, cols = 0;  // summed over all stages
      on_poisoned_ranks(
          config, world_size, [&](RankContext& rank, RandomBatches& batches, const PoisoningBackend& backend) {
            rank.step.run(1e-3, batches);
            const std::lock_guard lock(mutex);
            for (const MemoryClass c : {MemoryClass::optimizer, MemoryClass::state, MemoryClass::workspace}) {
              INFO(memory_class_names[static_cast<size_t>(c)]);
              const DeviceMemory& arena = *backend.arenas[static_cast<size_t>(c)];
              CHECK(arena.bytes() == rank.plan.memory().arenas[c]);
              CHECK(backend.touched_bytes(arena) == arena.bytes());
            }
            CHECK(rank.plan.memory().frame_bytes == align_up(8 * sums));
            int64_t own_rows = 0, own_cols = 0, vectors = 0;
            const ParameterLayout& held = rank.step.design().layout;
            for (const UnitRange& unit : held.units) {
              own_rows += unit.matrix_rows;
              own_cols += unit.matrix_cols;
              vectors += std::min(unit.before_last, config.parallel.zero > 0 ? unit.piece_elements() : unit.elements);
            }
            CHECK(rank.plan.memory().arenas[MemoryClass::optimizer] ==
                  align_up(4 * vectors) + align_up(4 * own_rows) + align_up(4 * own_cols));
            if (rank.groups.rank() % (world_size / layout.pipeline) == 0) {
              rows += own_rows;
              cols += own_cols;
            }
          });
      CHECK(rows + cols == sums);
    }
  }
}

}  // namespace test_adafactor_memory
