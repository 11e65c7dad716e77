#include "checkpoint/hf_import.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/hf_files.h"
#include "checkpoint/new_folder.h"
#include "config/faults.h"
#include "config/fields.h"
#include "config/load.h"
#include "data/tokenizer/files.h"
#include "model/spec/spec.h"
#include "optim/types.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

using Progressed = std::function<void(int64_t bytes)>;

// Memory that reads as zeros.
class ZeroMemory final : public SliceMemory {
 public:
  explicit ZeroMemory(const Progressed& progressed) : progressed_(progressed) {}
  void read(const std::byte*, int64_t bytes, const Take& take) override {
    static const std::vector<std::byte> zeros(size_t{1} << 20);
    while (bytes > 0) {
      const int64_t piece = std::min(bytes, std::ssize(zeros));
      take(zeros.data(), piece);
      progressed_(piece);
      bytes -= piece;
    }
  }
  void write(std::byte*, const std::byte*, int64_t) override {}

 private:
  const Progressed& progressed_;
};

// One of gptrain's tensors, put together from transformers' as it is read. Its addresses count bytes from 0.
class ImportedTensor final : public SliceMemory {
 public:
  ImportedTensor(const HfFiles& files, const Progressed& progressed) : files_(files), progressed_(progressed) {}
  void add(HfTensor part) { parts_.push_back(std::move(part)); }
  void read(const std::byte* from, int64_t bytes, const Take& take) override {
    const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(from));
    int64_t begin = 0;  // first byte of the part
    for (size_t part = 0; part < parts_.size(); ++part) {
      const int64_t end = begin + *num_elements(parts_[part].shape) * dtype_bytes(DType::f32);
      const int64_t low = std::max(first, begin), high = std::min(first + bytes, end);
      if (low < high) {
        load(part);
        take(reinterpret_cast<const std::byte*>(values_.data()) + (low - begin), high - low);
        progressed_(high - low);
        if (high == end) unload();
      }
      begin = end;
    }
  }
  void write(std::byte*, const std::byte*, int64_t) override {}

 private:
  // A large part is written to several files, one after the other.
  void load(size_t part) {
    if (loaded_ == part) return;
    const HfTensor& tensor = parts_[part];
    values_ = files_.read(tensor.name);
    if (tensor.transposed) values_ = transpose(values_.data(), tensor.shape[0], tensor.shape[1]);
    loaded_ = part;
  }
  void unload() {
    loaded_.reset();
    values_ = {};
  }

  const HfFiles& files_;
  const Progressed& progressed_;
  std::vector<HfTensor> parts_;  // in the order of their rows
  std::optional<size_t> loaded_;
  std::vector<float> values_;  // values of part loaded_
};

RunConfig config_of(const HfDescription& description, const fs::path& file, const std::string& precision) {
  const Json document = {{"model", description.model},  {"data", {{"train", Json::array({{{"path", "imported"}}})}}},
                         {"batch", {{"global", 1}}},    {"precision", {{"compute", precision}}},
                         {"optimizer", {{"lr", 1e-4}}}, {"run", {{"steps", 1}, {"out", "imported"}}}};
  try {
    return parse_config(json_text(document), {}, "config");
  } catch (const Error& error) {
    throw Error(ExitCode::checkpoint, "{} cannot be imported:\n{}", file.string(), error.lines());
  }
}

// The names under which the files hold the class's tensors: a GPT's with and without "transformer.".
void find_names(std::vector<HfTensor>& tensors, const HfFiles& files) {
  constexpr std::string_view prefix = "transformer.";
  for (HfTensor& tensor : tensors) {
    if (files.tensors().contains(tensor.name) || !tensor.name.starts_with(prefix)) continue;
    if (std::string bare = tensor.name.substr(prefix.size()); files.tensors().contains(bare)) tensor.name = bare;
  }
}

// Returns true for tensors that are no parameters: masks and angles, which the classes can compute.
bool is_buffer(const std::string& name, const HfClass& hf) {
  if (hf.is_gpt()) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".attn.attention.bias") || name.ends_with(".attn.attention.masked_bias");
  }
  return name.ends_with(".rotary_emb.inv_freq");
}

void check_tensors(const std::vector<HfTensor>& tensors, const HfFiles& files, const ModelConfig& model,
                   const HfClass& hf, const fs::path& folder, std::vector<std::string>& notes) {
  std::vector<std::string> faults;
  std::set<std::string> used;
  for (const HfTensor& tensor : tensors) {
    used.insert(tensor.name);
    const auto found = files.tensors().find(tensor.name);
    if (found == files.tensors().end()) {
      faults.push_back(fmt::format("\"{}\" is missing", tensor.name));
    } else if (const SafetensorsTensor& stored = found->second.tensor; stored.shape != tensor.shape) {
      faults.push_back(fmt::format("\"{}\" of {} has shape {}, its config asks for {}", tensor.name,
                                   files.file_of(tensor.name).filename().string(), format_shape(stored.shape),
                                   format_shape(tensor.shape)));
    }
  }
  for (const auto& [name, location] : files.tensors()) {
    if (used.contains(name) || is_buffer(name, hf)) continue;
    if (name == "lm_head.weight" && model.tied_head) {
      notes.push_back("lm_head.weight is not imported: with tie_word_embeddings the head is the token table");
      continue;
    }
    faults.push_back(fmt::format("\"{}\" of {} is no tensor of a {}", printable(name),
                                 files.file_of(name).filename().string(), hf.name));
  }
  if (faults.empty()) return;
  constexpr size_t max_listed = 8;
  const size_t count = faults.size();
  if (count > max_listed) faults.resize(max_listed);
  throw Error(ExitCode::checkpoint, "{} does not hold the model of its config.json:\n  {}{}", folder.string(),
              Lines::join(faults, "\n  "), count > max_listed ? Lines("\n  and {} more", count - max_listed) : Lines());
}

// Refuses a head that differs from the token embedding if the config ties them: the head's values would be lost.
void require_tied_head(const std::vector<HfTensor>& tensors, const HfFiles& files, const ModelConfig& model,
                       const fs::path& config_file) {
  const std::string head = "lm_head.weight";
  if (!model.tied_head || !files.tensors().contains(head)) return;
  const auto table = std::find_if(tensors.begin(), tensors.end(),
                                  [](const HfTensor& tensor) { return tensor.source == "embedding.token"; });
  if (files.tensors().at(head).tensor.shape == table->shape && files.read(head) == files.read(table->name)) return;
  throw Error(ExitCode::checkpoint,
              "{} cannot be imported: it ties the head to \"{}\" (tie_word_embeddings is true, given or by default), "
              "but \"{}\" of {} differs from that; set it to false in config.json to import both",
              config_file.string(), table->name, head, files.file_of(head).filename().string());
}

// Returns true for a link without a target, too.
bool has_file(const fs::path& folder, const char* name) {
  std::error_code unreadable;
  return fs::exists(fs::symlink_status(folder / name, unreadable));
}

// Notes the folder's files about tokenizer and generation that a checkpoint does not keep.
void note_files_left_behind(const fs::path& folder, bool has_tokenizer, std::vector<std::string>& notes) {
  constexpr const char* vocabularies[] = {"tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json",
                                          "vocab.json",     "merges.txt",      "vocab.txt"};
  constexpr const char* others[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                    "chat_template.jinja", "generation_config.json"};
  std::vector<std::string> left;
  for (const char* name : vocabularies)
    if (!has_tokenizer && has_file(folder, name)) left.emplace_back(name);
  for (const char* name : others)
    if (has_file(folder, name)) left.emplace_back(name);
  if (!left.empty())
    notes.push_back(
        fmt::format("not imported: {}, which a checkpoint does not hold; an export writes its own", join(left, ", ")));
}

std::optional<TokenizerRecord> tokenizer_in(const fs::path& folder, const HfDescription& description,
                                            int64_t vocab_size, std::vector<std::string>& notes) {
  const auto has = [&](const char* name) { return has_file(folder, name); };
  const bool is_of_gpt2 = has("vocab.json") && has("merges.txt");
  if (!has("tokenizer.json") && !is_of_gpt2 && !has("tokenizer.model") && !has("tiktoken.model")) {
    notes.push_back(
        "no tokenizer is imported: the folder holds none; name one in data.tokenizer, and in generate --tokenizer");
    return std::nullopt;
  }
  try {
    const auto tokenizer = load_tokenizer(folder.string());
    std::optional<int32_t> end = description.end_token;
    if (end && !tokenizer->has(*end)) end.reset();
    if (tokenizer->vocab_size() <= vocab_size) return make_tokenizer_record(*tokenizer, end);
    notes.push_back(
        fmt::format("the tokenizer is not imported: it has {} tokens, the model {}; a run from its weights "
                    "may have the larger model.vocab_size",
                    tokenizer->vocab_size(), vocab_size));
  } catch (const Error& error) {
    notes.push_back(fmt::format("the tokenizer is not imported, name another in data.tokenizer or with --tokenizer: {}",
                                error.what()));
  }
  return std::nullopt;
}

}  // namespace

HfImport import_hf(const fs::path& folder, const fs::path& out, const std::string& precision,
                   const std::function<void(int64_t, int64_t)>& progress) {
  NewFolder made(out, "OUT");
  const fs::path config_file = folder / "config.json";
  const HfDescription description = read_hf_config(config_file);
  const RunConfig config = config_of(description, config_file, precision);
  const HfFiles files(folder);
  std::vector<HfTensor> tensors = hf_tensors(config.model, description.hf);
  find_names(tensors, files);
  HfImport result{.architecture = description.hf.name,
                  .tensors = std::ssize(tensors),
                  .parameters = make_spec(config.model).parameters(),
                  .notes = description.notes};
  for (const std::string& key : description.unknown)
    result.notes.push_back(fmt::format("{} of config.json is not used", printable(key)));
  check_tensors(tensors, files, config.model, description.hf, folder, result.notes);
  require_tied_head(tensors, files, config.model, config_file);

  const StateColumns columns = state_columns(config);
  const int64_t total = result.parameters * dtype_bytes(DType::f32) * (1 + std::ssize(columns));
  int64_t done = 0;
  const Progressed progressed = [&](int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  std::vector<std::unique_ptr<ImportedTensor>> weights;
  ZeroMemory zeros(progressed);
  std::vector<Slice> slices;
  const auto add = [&](std::string name, const std::vector<int64_t>& shape, SliceMemory* memory) {
    slices.push_back({.name = std::move(name), .global_shape = shape, .box = whole_box(shape), .memory = memory});
  };
  size_t next = 0;
  for (const TensorSpec& tensor : make_spec(config.model).tensors) {
    weights.push_back(std::make_unique<ImportedTensor>(files, progressed));
    while (next < tensors.size() && tensors[next].source == tensor.name) weights.back()->add(tensors[next++]);
    add(fmt::format("{}{}", weight_prefix, tensor.name), tensor.shape, weights.back().get());
    for (const StateColumn& column : columns) add(fmt::format("{}/{}", column.name, tensor.name), tensor.shape, &zeros);
  }
  Manifest manifest;
  manifest.seed = config.run.seed;
  manifest.config = show_config(config, ConfigText::for_any_ranks);
  manifest.build = version;
  manifest.tokenizer = tokenizer_in(folder, description, config.model.vocab_size, result.notes);
  note_files_left_behind(folder, manifest.tokenizer.has_value(), result.notes);
  save_checkpoint(made.path(), manifest, slices);
  made.write("model.json", show_model(config));
  made.publish();
  return result;
}

}  // namespace gptrain::checkpoint
