// Sets up a run before its first step. A fault on one rank refuses the run on all.
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
#include "step/update_resources.h"
#include "train/folder.h"
#include "train/options.h"
#include "train/resume_changes.h"
#include "train/run_context.h"
#include "train/state_save.h"

namespace gptrain::inline train {

// `all` is the group of all ranks of `world`, null if there is one rank. Errors are agreed upon (comm/agree.h).

// The start of a run, which rank 0 chooses from the run's folder for all ranks.
struct Start {
  std::unique_ptr<FolderLock> lock;                 // on rank 0
  std::optional<std::filesystem::path> checkpoint;  // checkpoint to resume; none: do not resume
  std::optional<std::filesystem::path> weights;     // checkpoint whose weights to start with; none: initial ones
  int64_t last_step = 0;                            // last step of this call
  std::string warning;                              // on rank 0: too little room for checkpoints; else empty
  // Members of a resumed run: the checkpoint's manifest, the changes that the command accepts, and the changes of the
  // config, one line each.
  std::optional<Manifest> manifest = {};
  AcceptedChanges accepted = {};
  std::vector<std::string> changes = {};
};
// Rank 0 locks the folder and chooses; the other ranks follow. `bytes` is the size of a checkpoint. THROWS
// Error(usage), and Error(checkpoint), also if the folder's disk has no room for a checkpoint.
Start choose_start(const RunConfig& config, const TrainOptions& options, int64_t bytes, Communicator* all,
                   const World& world);

struct RunData {
  RunTokenizer tokenizer;
  std::string warning;  // about files that several sources of the training data have; else empty
  Dataset train;
  std::optional<Dataset> validation;
  RunRecord record;
  std::vector<std::string> changes;  // changes of config and sources since the checkpoint, one line each
};
// Opens the data; every rank reads its own files. THROWS Error(device) if a rank's data differ from rank 0's,
// Error(usage) if a resumed run has another tokenizer than its checkpoint, Error(data) if its sources hold other tokens
// than the checkpoint's and that is not accepted.
RunData open_data(const RunConfig& config, const Start& start, Communicator* all, const World& world);

// THROWS Error(usage) if the run still goes on when every source has been seen as often as it may be. `progress` is
// that of the run so far, whose steps may have had other batch sizes.
void check_length(int64_t batch, int64_t run_steps, const Dataset& data, const RunProgress& progress = {});

// Takes the drives' space for optimizer state that is on disk. THROWS Error(checkpoint) if a rank's folder has none.
std::unique_ptr<UpdateResources> make_update_resources(const StepDesign& design, const RunContext& context);

// THROWS as TrainingStep's constructor, on all ranks if one has no memory.
std::unique_ptr<TrainingStep> make_step(std::shared_ptr<const StepDesign> design, const RunContext& context,
                                        const UpdateResources& updates);

// Selects the library algorithms of the matrix products if the backend offers a choice: the checkpoint's, so that the
// run continues bit for bit; rank 0 chooses those that the checkpoint does not name, for all ranks. Collective over
// `all`.
void choose_algorithms(TrainingStep& step, const std::optional<std::filesystem::path>& checkpoint, Communicator* all);

int ranks_on_this_host(const World& world);

}  // namespace gptrain::train
