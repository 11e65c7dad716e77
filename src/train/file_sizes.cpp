#include "train/file_sizes.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/process_limits.h"
#include "base/version.h"
#include "checkpoint/contents.h"
#include "config/load.h"
#include "ops/plan/plan_backend.h"
#include "parallel/groups.h"
#include "train/metrics.h"
#include "train/state_save.h"

namespace gptrain::inline train {
namespace {

// Returns the rank's files of a checkpoint, from a step that is planned only.
std::vector<FileRecord> planned_files(const PlanCase& run, const std::shared_ptr<const StepDesign>& design, int rank) {
  RankGroups groups(run.config, run.world_size, rank);
  PlanBackend backend(run.target), update_backend(update_target(run.config.memory, run.target));
  const bool has_own_backend = design->choices.updates_on_host || design->choices.keeps_state_away();
  const TrainingStep step(design, backend, groups, {.backend = has_own_backend ? &update_backend : nullptr});
  return plan_rank_files(rank, slices_of(step, step.written_state(), StatePart::all, nullptr));
}

// Returns the size of the manifest if every rank has as many slices as this one.
int64_t manifest_bytes(const PlanCase& run, const std::vector<FileRecord>& files) {
  constexpr int64_t growth_bytes = 2048;  // history of the run, losses, algorithms
  StoredManifest stored;
  stored.manifest.world_size = run.world_size;
  stored.manifest.config = show_config(run.config, ConfigText::for_any_ranks);
  stored.manifest.build = version;
  stored.num_tensors = 1;
  stored.files = files;
  const auto whole = static_cast<int64_t>(format_manifest(stored).size());
  stored.files.clear();
  const auto without_files = static_cast<int64_t>(format_manifest(stored).size());
  return without_files + run.world_size * (whole - without_files) + growth_bytes;
}

int64_t metrics_bytes(const RunSettings& run, const TrainOptions& options, int64_t records) {
  constexpr int64_t usual_record_bytes = 250;  // a dense model's, without the costs of checkpoints
  std::error_code none;
  const std::filesystem::path earlier = std::filesystem::path(run.out) / metrics_file_name;
  // A run that goes on to its last step has all records then.
  const bool adds = options.resume && options.steps && std::filesystem::is_regular_file(earlier, none);
  const auto before = adds ? static_cast<int64_t>(std::filesystem::file_size(earlier, none)) : 0;
  return (none ? 0 : before) + records * usual_record_bytes;
}

int64_t report_bytes(int64_t records) {
  constexpr int64_t page_bytes = 20'000, point_bytes = 108, most_points = 750;  // a plot leaves out further points
  return page_bytes + point_bytes * std::min(records, most_points);
}

}  // namespace

void require_file_sizes(const PlanCase& run, const TrainOptions& options,
                        const std::shared_ptr<const StepDesign>& design, int rank) {
  if (may_write_all_sizes()) return;
  const std::vector<FileRecord> files = planned_files(run, design, rank);
  int64_t largest = 0;
  for (const FileRecord& file : files) largest = std::max(largest, file.bytes);
  require_file_size(largest, "the largest file of a checkpoint");
  if (rank > 0) return;
  require_file_size(manifest_bytes(run, files), "the manifest of a checkpoint");
  const int64_t steps = run.config.run.steps;
  const int64_t records = std::min(options.steps.value_or(steps), steps) / run.config.log.every_steps;
  require_file_size(metrics_bytes(run.config.run, options, records), "metrics.jsonl at the end of the run");
  require_file_size(report_bytes(records), "report.html at the end of the run");
}

}  // namespace gptrain::train
