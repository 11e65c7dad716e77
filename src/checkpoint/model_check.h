// Whether a checkpoint is one of the model that its own config describes. Its checksums say that nothing was changed by
// accident; a config and tensors that do not belong together are found here, before anything is made of them.
#pragma once

#include <filesystem>

#include "checkpoint/contents.h"
#include "config/run_config.h"

namespace gptrain {

// The config that the checkpoint was saved with, for as many ranks. Error(checkpoint): it cannot be read.
RunConfig saved_config(const std::filesystem::path& checkpoint, const Manifest& manifest);

// Every tensor that is stored must be one of the model's, or of the optimizer's state, with its shape and dtype, and
// stored whole; every weight must be there. Error(checkpoint), which lists what differs.
void check_model(const Contents& contents, const RunConfig& config);
// Whether steps, samples, updates and seed of a manifest belong together. Error(checkpoint).
void check_progress(const std::filesystem::path& checkpoint, const Manifest& manifest, const RunConfig& saved);
// Both for a checkpoint of which nothing has been read.
void check_model(const std::filesystem::path& checkpoint);

}  // namespace gptrain
