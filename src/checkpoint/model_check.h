// Checks that a checkpoint's tensors are those of the model that its config describes. Checksums find accidental
// changes; these checks find a config and tensors that do not belong together, before they are used.
#pragma once

#include <filesystem>

#include "checkpoint/contents.h"
#include "config/run_config.h"

namespace gptrain::inline checkpoint {

// Returns the config that the checkpoint was saved with, for the saved number of ranks. THROWS Error(checkpoint) if it
// cannot be read.
RunConfig saved_config(const std::filesystem::path& checkpoint, const Manifest& manifest);

// THROWS Error(checkpoint), listing the differences, unless every stored tensor is a weight, optimizer state or errors
// or factors of compressed gradients, with its shape and dtype and stored whole, and every weight is there.
void check_model(const Contents& contents, const StepConfig& config);
// THROWS Error(checkpoint) unless steps, samples and updates of a manifest belong together, and its seed is `seed`.
void check_progress(const std::filesystem::path& checkpoint, const Manifest& manifest, const BatchConfig& batch,
                    uint64_t seed);
// Reads a checkpoint and makes all checks of a run that resumes it, except for the checksums of the tensors' bytes.
// THROWS Error(checkpoint).
Contents check_model(const std::filesystem::path& checkpoint);

}  // namespace gptrain::checkpoint
