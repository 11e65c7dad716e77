// Saves a training step's state to checkpoints and loads it, and chooses the checkpoint to resume from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "step/training_step.h"
#include "train/state_save.h"

namespace gptrain::inline train {

// Saves a checkpoint in run.out and waits for it. Called by tests; a run saves with Checkpointing. Collective over the
// world; call on the rank's thread. THROWS Error(checkpoint) on every rank if one fails, with the message on rank 0.
void save_state(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                const RankGroups& groups, const World& world);
// Saves the weights alone, in the folder of checkpoints of `out`, with `tokenizer` if there is one. No run can resume
// from them. Collective and THROWS as save_state does.
void save_weights(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                  const RankGroups& groups, const World& world, const std::filesystem::path& out,
                  const std::optional<TokenizerRecord>& tokenizer);
// Loads weights, optimizer state, update count and loss scale, whatever the layout of the ranks that saved them. If the
// checkpoint has no average of the weights and the run keeps one, it begins with the loaded weights. Returns the
// progress of the saved run. Collective over the world. THROWS like save_state.
RunProgress load_state(const std::filesystem::path& checkpoint, TrainingStep& step, const RankGroups& groups,
                       const World& world);

// The functions up to checkpoint_to_init_from read files on the calling rank alone. In training rank 0 calls them and
// tells the others.

// Returns `path` if it is a checkpoint, or the newest checkpoint if it is a run's folder. THROWS Error(checkpoint) if
// there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// Returns the checkpoint that `--resume` asks for: "latest" is the newest one of run.out, none if there are none; any
// other value is a folder. THROWS Error(checkpoint) if the checkpoint's structure is damaged, Error(usage) if the
// config cannot continue it. The tensors' bytes are checked when they are loaded.
std::optional<std::filesystem::path> checkpoint_to_resume(const RunConfig& config, const std::string& resume);

// Returns the checkpoint that a run starts from: that of `resume` (see above), or none. THROWS Error(usage) if run.out
// holds checkpoints of another run, i.e. if none of them is the one to start from.
std::optional<std::filesystem::path> checkpoint_to_start_from(const RunConfig& config,
                                                              const std::optional<std::string>& resume);

// Returns the checkpoint that --init-from asks for: `asked` is a checkpoint, or a run's folder, which means its newest.
// THROWS Error(checkpoint) if its structure is damaged, Error(usage) if its weights do not fit the config's model,
// whose vocabulary may be larger.
std::filesystem::path checkpoint_to_init_from(const RunConfig& config, const std::string& asked);
// Loads the checkpoint's weights into a step with its initial state. Rows of the vocabulary that the checkpoint lacks
// keep their initial values. Returns one line for each other difference from the checkpoint's run. Collective over the
// world. THROWS like save_state.
std::vector<std::string> load_weights(const std::filesystem::path& checkpoint, TrainingStep& step,
                                      const RankGroups& groups, const World& world);

// Renames the checkpoints of run.out that are later than `step` to NAME.abandoned (or NAME.abandoned-2 and so on):
// after a resume from an older checkpoint they belong to no run. Returns their new names. Call on one rank. THROWS
// Error(checkpoint) if one cannot be renamed.
std::vector<std::string> set_aside_later_checkpoints(const std::filesystem::path& out, int64_t step);

}  // namespace gptrain::train
