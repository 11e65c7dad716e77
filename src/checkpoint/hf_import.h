// The weights of a folder of the transformers library as a checkpoint, from which a run can start.
//
// OUT/
//   model.json                  a config's section `model`, of the imported model
//   checkpoints/step-00000000   the weights, and an optimizer's state of zeros
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gptrain::inline checkpoint {

struct HfImport {
  std::string architecture;
  int64_t tensors = 0;  // number of transformers' tensors
  int64_t parameters = 0;
  std::vector<std::string> notes;  // parts of the folder that were changed or left behind
};

// Imports `folder` to `out`, which must not exist. The config that the checkpoint holds has the model of the folder,
// and precision.compute = `precision`; its other sections mean nothing. Weights are kept in f32, exactly. Memory holds
// at most two copies of the largest tensor. A tokenizer that gptrain reads goes along. `out` is written under a
// temporary name beside it and renamed when all of it is on the disk. `progress(done, total)` hears of the bytes
// written. Throws Error(usage) if `out` exists, and Error(checkpoint) for a folder that is damaged or holds anything
// that gptrain does not compute exactly (the message names all of it), or a failing disk; `out` then does not exist.
HfImport import_hf(const std::filesystem::path& folder, const std::filesystem::path& out, const std::string& precision,
                   const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace gptrain::checkpoint
