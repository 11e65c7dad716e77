#include "step/update_resources.h"

#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "base/control_group.h"
#include "parallel/away_state.h"

namespace gptrain::inline step {

UpdateResources::UpdateResources(const StepDesign& design, Backend& ops, int64_t rank, int threads) {
  if (!design.choices.keeps_state_away()) return;
  Target target = ops.target();
  if (threads > 0) target.num_threads = threads;
  backend_ =
      make_cpu_backend(update_target(design.config.memory, target).num_threads, design.config.run.thread_independent);
  cores_ = cores_of_threads(rank, design.config.memory.update_threads);
  if (updates_beside_gpu(design.choices, target)) gpu_ = &ops;
  if (!design.choices.keeps_state_on_disk()) return;
  const ParameterStore store(*design.spec, *design.shards, design.layout, design.sharding, {}, design.columns,
                             design.choices.optimizer_state);
  const std::vector<std::string> names = design.config.memory.disk_folders();
  const std::vector<std::filesystem::path> folders(names.begin(), names.end());
  const std::string owner = fmt::format("rank-{}", rank);
  std::vector<StoredPiece> pieces = stored_pieces(store);
  files_ =
      std::make_unique<WorkingFiles>(WorkingFilesOptions{.folders = folders,
                                                         .owner = owner,
                                                         .depth = static_cast<int>(design.config.memory.disk_depth),
                                                         .transfer_bytes = design.config.memory.disk_transfer_bytes},
                                     pieces);
  if (design.cloned_bytes == 0) return;
  // Clones take space as the working files change: finds out now whether there is room, and frees it.
  pieces.resize(num_saved_pieces(store));
  const StoredFiles room(
      {.folders = folders,
       .owner = owner,
       .purpose = "clones of working files, beside these (memory.disk_clones = \"never\" takes none)"},
      std::move(pieces));
}

}  // namespace gptrain::step
