// A checkpoint's weights as a folder that transformers' from_pretrained loads.
//
// OUT/
//   config.json         class, shape and eps of the model; see hf_config.h
//   model.safetensors   the weights under transformers' names; or beyond 5 GB model-00001-of-00003.safetensors and so
//                       on, and model.safetensors.index.json, which names each tensor's file
//   tokenizer.json, tokenizer_config.json, generation_config.json
//                       if the checkpoint holds a tokenizer other than "bytes"
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/which_weights.h"

namespace gptrain::inline checkpoint {

struct HfExport {
  std::string architecture;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t files = 0;                  // number of weight files
  int64_t bytes = 0;                  // bytes of the weight files
  std::vector<std::string> left_out;  // see HfModel
  std::string warning;                // see HfModel
  std::string note;                   // missing parts of the tokenizer; else empty
};

// Writes the master weights of `checkpoint` (a checkpoint's folder), or their average, to the folder `out`, which must
// not exist, in `dtype`: f32, or bf16 or f16 rounded to nearest. Tensors are streamed: memory holds at most the largest
// one twice. The folder is written under a temporary name beside it and renamed when all of it is on the disk.
// `progress(done, total)`, if given, hears of the bytes written. Files of several tensors have at most
// `most_file_bytes` of them. Throws Error(usage) if `out` exists, no class of transformers computes the model, there is
// no average or a weight is beyond f16, Error(checkpoint) for a damaged checkpoint or a failing disk; `out` then does
// not exist.
HfExport export_hf(const std::filesystem::path& checkpoint, const std::filesystem::path& out, DType dtype,
                   WhichWeights which = WhichWeights::trained,
                   const std::function<void(int64_t done, int64_t total)>& progress = {},
                   int64_t most_file_bytes = 5'000'000'000);

}  // namespace gptrain::checkpoint
