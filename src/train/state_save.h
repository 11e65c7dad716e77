// A training step's state as the slices of a checkpoint, and one save of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/slice.h"
#include "config/run_config.h"
#include "step/training_step.h"

namespace gptrain::inline train {

enum class StatePart { all, weights };

// Returns the access of slices to the memory of a step; null if the whole state lies in host memory. The step must
// outlive it.
std::unique_ptr<SliceMemory> make_slice_memory(const TrainingStep& step);

// Returns the access of slices to the clone of a step's values on disk (TrainingStep::clone_state), which it makes, and
// to host memory; null if the step clones none. The step must outlive it.
std::unique_ptr<SliceMemory> make_clone_memory(TrainingStep& step);

// Returns the slices of the weights and, unless `part` is weights, of the optimizer's columns and of the errors and
// factors of compressed gradients, in the memory that `pieces` name.
std::vector<Slice> slices_of(const TrainingStep& step, const std::vector<StateSlice>& pieces, StatePart part,
                             SliceMemory* memory);

// Returns the name that a checkpoint gives to a copy of the errors of a tensor: those of a data rank, or of a node
// (comm.compression).
std::string residual_name(int64_t copy, const TensorSpec& tensor);

// The part of a save that one rank writes, and the manifest that rank 0 writes. Its slices refer to the memory of the
// pieces.
struct StateSave {
  std::filesystem::path out;  // the same on all ranks
  Manifest manifest;
  std::vector<Slice> slices;
  int64_t num_tensors = 0;  // global tensors
};
// Returns this rank's part of a save: the slices, and the manifest of the config, the step and `progress`. Not
// collective.
StateSave make_state_save(const RunConfig& config, const TrainingStep& step, const RunProgress& progress,
                          const std::filesystem::path& out, const std::optional<TokenizerRecord>& tokenizer,
                          std::vector<Slice> slices, StatePart part = StatePart::all);

// Writes this rank's part. Once all parts are durable, rank 0 calls `before_publish`, if given, and gives the
// checkpoint its name. Collective over `all`, the group of the world (null: there is one rank); any thread. THROWS on
// every rank if one fails, with the message on rank 0, after removing all files written: Error(diverged) if a number is
// not finite, else Error(checkpoint). THROWS PeerGone if a rank has left; the files written then stay under a temporary
// name.
void write_state(const StateSave& save, Communicator* all, const World& world,
                 const std::function<void()>& before_publish = {});

}  // namespace gptrain::train
