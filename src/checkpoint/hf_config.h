// A model as the config.json of the transformers library describes it: written from gptrain's keys, and read into them.
// One table pairs the keys that say the same thing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/hf_names.h"
#include "config/json_text.h"
#include "config/run_config.h"

namespace gptrain::inline checkpoint {

struct HfModel {
  HfClass hf;
  Json config;  // the content of config.json
  std::vector<HfTensor> tensors;
  // Keys that the class lacks and that act in training only: "model.z_loss = 0.0001".
  std::vector<std::string> left_out;
  // Warning that the exported model attends to earlier documents, though it was trained with data.mask_documents; empty
  // if it was not.
  std::string warning;
};

// Returns the first of hf_classes() that computes exactly the same function; README.md of this folder has the table.
// `dtype` is the exported weights', f32, bf16 or f16. THROWS Error(usage) if there is none; the message names, for each
// class, the keys that prevent it.
HfModel hf_model(const StepConfig& config, DType dtype);

struct HfDescription {
  HfClass hf;
  Json model;                        // the section `model` of a run config
  std::vector<std::string> notes;    // treatment of keys that act in training only
  std::vector<std::string> unknown;  // keys that neither side knows
  std::optional<int32_t> end_token;  // eos_token_id, the first of several
};

// Reads a config.json of any release of transformers, before 5 or later. THROWS Error(checkpoint), naming the file and
// all keys that prevent it, if the file is damaged, its class is none of hf_classes(), or it asks for something that
// gptrain does not compute. Does not check that the values fit each other; the config's reader does.
HfDescription read_hf_config(const std::filesystem::path& file);

}  // namespace gptrain::checkpoint
