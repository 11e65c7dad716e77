// The workspace of Muon's orthogonalisation.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "poisoning_backend.h"

namespace test_muon_memory {

using namespace gptrain;
using namespace gptrain::testing;

// With few tokens the workspace is that of the orthogonalisation. It has the same size on all ranks; the rank with the
// largest matrix fills it.
TEST_CASE("Muon's workspace is what its largest matrix needs") {
  for (const SmallLayout& layout : {SmallLayout{1, 1, {}}, SmallLayout{2, 1, {}},
                                    SmallLayout{1, 3, {"parallel.zero=1"}}, SmallLayout{2, 2, {"parallel.zero=3"}}}) {
    const int64_t world_size = layout.world_size();
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
      INFO(world_size << " ranks " << precision);
      const RunConfig config = config_of(layout, {precision, "optimizer.type=muon", "model.sequence_length=2",
                                                  "batch.micro=1", "model.vocab_size=64"});
      std::mutex mutex;
      int64_t most_touched = 0, planned = 0;
      on_poisoned_ranks(config, world_size,
                        [&](RankContext& rank, RandomBatches& batches, const PoisoningBackend& backend) {
                          rank.step.run(1e-3, batches);
                          const std::lock_guard lock(mutex);
                          const auto c = static_cast<size_t>(MemoryClass::workspace);
                          const DeviceMemory& workspace = *backend.arenas[c];
                          planned = rank.plan.memory().arenas[MemoryClass::workspace];
                          CHECK(workspace.bytes() == planned);
                          most_touched = std::max(most_touched, backend.touched_bytes(workspace));
                          // The matrix whole and in parts in f32, X in the products' dtype and as a product in f32, A
                          // and A A.
                          const int64_t largest = config.model.ffn_hidden_size * config.model.hidden_size;
                          const int64_t square = config.model.hidden_size * config.model.hidden_size;
                          const int64_t of_products = dtype_bytes(config.precision.compute);
                          const int64_t alone = align_up(of_products * largest), gathered = 2 * align_up(4 * largest);
                          CHECK(rank.plan.memory().frame_bytes ==
                                (world_size == 1 ? alone : gathered) + alone + 2 * align_up(of_products * square));
                        });
      CHECK(most_touched == planned);
    }
  }
}

}  // namespace test_muon_memory
