// A training step's state to and from checkpoints, and the choice of the checkpoint to resume from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "train/state_save.h"
#include "step/training_step.h"

namespace gptrain {

// Saves in run.out, now: collective over the world, by the rank's thread. Error(checkpoint) on every rank if one fails,
// with the message on rank 0.
void save_state(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                const RankGroups& groups, const World& world);
// The same with weights alone, in a folder of checkpoints of its own, for a look at the model: no run goes on from it.
void save_weights(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                  const RankGroups& groups, const World& world, const std::filesystem::path& out,
                  const std::optional<TokenizerRecord>& tokenizer);
// Weights, optimizer state, update count and loss scale as saved, whatever the layout of the ranks that saved them; an
// average of the weights that was not kept then begins with them. Returns how far the run had come. Collective over the world; errors as for save_state.
RunProgress load_state(const std::filesystem::path& checkpoint, TrainingStep& step, const RankGroups& groups,
                       const World& world);

// A checkpoint's folder itself, or the newest complete checkpoint of a run's folder. Throws Error(checkpoint) where
// there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// What `--resume` asks for: "latest" (the newest of run.out, or none to start from scratch) or a folder. Checks that
// the checkpoint's structure is sound and that the config can go on from it: Error(checkpoint), Error(usage). The
// tensors' bytes are checked when they are loaded.
std::optional<std::filesystem::path> checkpoint_to_resume(const RunConfig& config, const std::string& resume);

// The checkpoint that a run starts from: the one that `resume` asks for (see above), none where it is not given. The
// checkpoints in a run's folder are those of one run: Error(usage) where run.out holds some that the run does not go on
// from.
std::optional<std::filesystem::path> checkpoint_to_start_from(const RunConfig& config,
                                                              const std::optional<std::string>& resume);

// What --init-from asks for: a checkpoint, or the newest of a run's folder. Checks that its structure is sound, and that its weights
// are those of the config's model, whose vocabulary may be larger: Error(checkpoint), Error(usage).
std::filesystem::path checkpoint_to_init_from(const RunConfig& config, const std::string& asked);
// Gives a step that has its initial state the checkpoint's weights; rows of the vocabulary that the checkpoint lacks stay
// as they are. Returns, one line each, what else is not as it was there. Collective over the world; errors as for
// save_state.
std::vector<std::string> load_weights(const std::filesystem::path& checkpoint, TrainingStep& step,
                                      const RankGroups& groups, const World& world);

// Renames the complete checkpoints of run.out that are later than `step` to NAME.abandoned: after a resume from an
// older one they belong to no run. Returns their names.
std::vector<std::string> set_aside_later_checkpoints(const std::filesystem::path& out, int64_t step);

}  // namespace gptrain
