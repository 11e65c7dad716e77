#include "checkpoint/upcycle.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/contents.h"
#include "checkpoint/model_check.h"
#include "checkpoint/new_folder.h"
#include "config/load.h"
#include "model/spec/spec.h"
#include "model/spec/tensor_key.h"
#include "ops/normal_values.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

// A tensor whose values are made when the first byte is read, and freed after the last one. Addresses count bytes from
// 0.
class MadeTensor : public SliceMemory {
 public:
  explicit MadeTensor(DType dtype) : dtype_(dtype) {}

  DType dtype() const { return dtype_; }
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    const auto first = reinterpret_cast<uintptr_t>(from);
    if (values_.empty()) keep(make());
    take(values_.data() + first, bytes);
    if (first + static_cast<uintptr_t>(bytes) == values_.size()) values_ = {};
  }
  void write(std::byte*, const std::byte*, int64_t) override {}

 private:
  virtual std::vector<float> make() const = 0;

  void keep(const std::vector<float>& values) {
    values_.resize(values.size() * static_cast<size_t>(dtype_bytes(dtype_)));
    if (dtype_ == DType::bf16) {
      std::transform(values.begin(), values.end(), reinterpret_cast<bf16*>(values_.data()), to_bf16);
    } else {
      std::copy(values.begin(), values.end(), reinterpret_cast<float*>(values_.data()));
    }
  }

  const DType dtype_;
  std::vector<std::byte> values_;
};

class CopiedTensor final : public MadeTensor {
 public:
  CopiedTensor(const Contents& contents, const std::string& name)
      : MadeTensor(contents.tensors.at(name).front().dtype), contents_(contents), name_(name) {}

 private:
  std::vector<float> make() const override { return load_tensor(contents_, name_, NotFinite::refused); }

  const Contents& contents_;
  const std::string name_;
};

// Initial weights of a router.
class DrawnTensor final : public MadeTensor {
 public:
  DrawnTensor(const TensorSpec& tensor, uint64_t seed, DType dtype)
      : MadeTensor(dtype),
        key_(tensor_key(tensor, seed, RandomUse::initial_weights)),
        deviation_(static_cast<float>(tensor.init_scale)),
        count_(tensor.count()) {}

 private:
  std::vector<float> make() const override {
    std::vector<float> values;
    for (int64_t i = 0; i < count_; i += 4) {
      const auto block = static_cast<uint64_t>(i / 4);
      const auto words = philox(key_, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0});
      const NormalPair a = normal_pair(words[0], words[1]), b = normal_pair(words[2], words[3]);
      for (const float value : {a.first, a.second, b.first, b.second}) values.push_back(deviation_ * value);
    }
    values.resize(static_cast<size_t>(count_));
    return values;
  }

  const PhiloxKey key_;
  const float deviation_;
  const int64_t count_;
};

// RETURNS the config of `text`, whose model is `dense`, with experts.
RunConfig config_with_experts(const std::string& text, const ModelConfig& dense, const std::string& moe) {
  const std::vector<std::string> settings = {"model.moe=" + moe};
  RunConfig config = parse_config(text, settings, "--moe");
  const MoeConfig& experts = config.model.moe;
  if (!experts.is_on())
    throw Error(ExitCode::usage, "--moe {}: has no experts; try {{\"experts\": 8, \"top_k\": 2}}", moe);
  if (experts.shared > 0)
    throw Error(ExitCode::usage,
                "--moe: \"shared\": {} would add an FFN that the checkpoint does not have; leave it out",
                experts.shared);
  for (int64_t layer = 0; layer < dense.num_layers; ++layer) {
    const int64_t width = dense.ffn(layer).hidden_size;
    if (experts.is_at(layer) && experts.ffn_hidden_size != width)
      throw Error(ExitCode::usage,
                  "--moe: experts of block {} have width {}, but its FFN, which they copy, has {}; leave out "
                  "\"ffn_hidden_size\"",
                  layer, experts.ffn_hidden_size, width);
  }
  return config;
}

// RETURNS the dense tensor that an expert's tensor copies: blocks.3.ffn.in.weight for blocks.3.experts.5.in.weight.
std::string source_of(const TensorSpec& tensor) {
  if (tensor.expert < 0) return tensor.name;
  const std::string of_expert = fmt::format("experts.{}.", tensor.expert);
  std::string name = tensor.name;
  return name.replace(name.find(of_expert), of_expert.size(), "ffn.");
}

}  // namespace

Upcycled upcycle_checkpoint(const fs::path& checkpoint, const std::string& moe, const fs::path& out) {
  NewFolder made(out, "OUT");
  const Contents contents = read_contents(checkpoint);
  const RunConfig dense = saved_config(checkpoint, contents.stored.manifest);
  check_model(contents, dense);
  if (dense.model.moe.is_on())
    throw Error(ExitCode::checkpoint, "{} has {} experts in a block already; only dense models become mixtures",
                checkpoint.string(), dense.model.moe.experts);
  const RunConfig config = config_with_experts(show_config(dense, ConfigText::for_any_ranks), dense.model, moe);
  const ModelSpec spec = make_spec(config.model);
  Upcycled result{.experts = config.model.moe.experts,
                  .dense_parameters = make_spec(dense.model).parameters(),
                  .parameters = spec.parameters()};
  for (int64_t layer = 0; layer < config.model.num_layers; ++layer)
    result.blocks += config.model.moe.is_at(layer) ? 1 : 0;
  if (!config.model.moe.renormalise || config.model.moe.scale != 1)
    result.notes.push_back(
        "the router's weights do not add up to 1, so the mixture begins elsewhere than the dense model");
  std::vector<std::unique_ptr<MadeTensor>> tensors;
  std::vector<Slice> slices;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.norm_use == NormUse::router) {
      tensors.push_back(std::make_unique<DrawnTensor>(tensor, config.run.seed, tensors.back()->dtype()));
    } else {
      tensors.push_back(
          std::make_unique<CopiedTensor>(contents, fmt::format("{}{}", weight_prefix, source_of(tensor))));
    }
    slices.push_back({.name = fmt::format("{}{}", weight_prefix, tensor.name),
                      .global_shape = tensor.shape,
                      .box = whole_box(tensor.shape),
                      .memory = tensors.back().get(),
                      .dtype = tensors.back()->dtype()});
  }
  Manifest manifest;
  manifest.seed = config.run.seed;
  manifest.config = show_config(config, ConfigText::for_any_ranks);
  manifest.build = version;
  manifest.tokenizer = read_tokenizer(checkpoint);
  save_checkpoint(made.path(), manifest, slices);
  made.publish();
  return result;
}

}  // namespace gptrain::checkpoint
