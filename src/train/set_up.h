// What a run needs before its first step, found sound on every rank or refused on all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "data/run_tokenizer.h"
#include "step/training_step.h"
#include "train/folder.h"
#include "train/options.h"
#include "train/resume_changes.h"
#include "train/state_save.h"

namespace gptrain {

// `all` is the group of all ranks of `world`, null where there is one rank. Errors are agreed upon (comm/agree.h).

// What rank 0 finds in the run's folder, and all ranks act on.
struct Start {
  std::unique_ptr<FolderLock> lock;                 // on rank 0
  std::optional<std::filesystem::path> checkpoint;  // that the run goes on from
  std::optional<std::filesystem::path> weights;     // or whose weights it starts with
  int64_t last_step = 0;                            // of this call
  std::string warning;                              // on rank 0: of too little room for checkpoints; else empty
  // Of a run that goes on: the checkpoint's, and what the config has otherwise, one line each.
  std::optional<Manifest> manifest = {};
  AcceptedChanges accepted = {};
  std::vector<std::string> changes = {};
};
// Rank 0 takes the folder and chooses, the others follow. `bytes`: of a checkpoint. Error(usage), Error(checkpoint),
// which is thrown where the folder's disk has no room for one, too.
Start choose_start(const RunConfig& config, const TrainOptions& options, int64_t bytes, Communicator* all,
                   const World& world);

struct RunData {
  RunTokenizer tokenizer;
  Dataset train;
  std::optional<Dataset> validation;
  RunRecord record;
  std::vector<std::string> changes;  // changes of config and sources since the checkpoint, one line each
};
// Every rank reads its own files. With other data than rank 0's it would train another model: Error(device). With
// another tokenizer than the checkpoint's, where the run goes on from one: Error(usage). With other tokens than the
// checkpoint's sources had: Error(data), unless that is accepted.
RunData open_data(const RunConfig& config, const Start& start, Communicator* all, const World& world);

// Error(usage): the run goes on when every source has been seen as often as it may be. `progress`: of the run so far,
// whose steps may have had other batches.
void check_length(const RunConfig& config, const Dataset& data, const RunProgress& progress = {});

// Error(device): no memory on some rank.
std::unique_ptr<TrainingStep> make_step(std::shared_ptr<const StepDesign> design, Backend& backend, RankGroups& groups,
                                        const World& world);

// Fixes which algorithms of a library serve the products, where the backend has a choice: the checkpoint's, so that the
// run goes on with the same bits; what it does not name is chosen now, by rank 0 for all. Collective over `all`.
void choose_algorithms(TrainingStep& step, const std::optional<std::filesystem::path>& checkpoint, Communicator* all);

int ranks_on_this_host(const World& world);

}  // namespace gptrain
