#include "checkpoint/hf_export.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/model_check.h"
#include "checkpoint/new_folder.h"
#include "checkpoint/safetensors.h"
#include "data/tokenizer/tokenizer_json.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

template <typename Round>
void write_rounded(SafetensorsWriter& writer, const float* values, int64_t count, const Round& round) {
  using Value = decltype(round(0.0F));
  std::vector<Value> rounded(count);
  std::transform(values, values + count, rounded.begin(), round);
  writer.write(rounded.data(), count * static_cast<int64_t>(sizeof(Value)));
}

void write_values(SafetensorsWriter& writer, const HfTensor& tensor, const float* values, int64_t count, DType dtype) {
  if (dtype == DType::f32) {
    writer.write(values, count * dtype_bytes(dtype));
    return;
  }
  if (dtype == DType::bf16) return write_rounded(writer, values, count, to_bf16);
  write_rounded(writer, values, count, [&](float value) {
    const f16 rounded = to_f16(value);
    if (std::isfinite(value) && !std::isfinite(to_float(rounded))) {
      throw Error(ExitCode::usage, "--dtype fp16: \"{}\" holds {:g}, and fp16 ends at 65504; choose bf16 or fp32",
                  tensor.name, value);
    }
    return rounded;
  });
}

using Progressed = std::function<void(int64_t bytes)>;

// Reads each of the checkpoint's tensors once, while transformers' come in their order.
class HfSource {
 public:
  HfSource(const Contents& contents, WhichWeights which) : contents_(contents), which_(which) {}

  void write(const HfTensor& tensor, SafetensorsWriter& writer, DType dtype) {
    if (tensor.source != loaded_) {
      values_ = {};  // frees it before the next is loaded
      values_ = load_tensor(contents_, stored_name(which_, tensor.source), NotFinite::refused);
      loaded_ = tensor.source;
    }
    const int64_t count = *num_elements(tensor.shape);
    const int64_t columns = count / tensor.rows;
    const float* values = values_.data() + tensor.first_row * columns;
    if (tensor.transposed) {
      write_values(writer, tensor, transpose(values, tensor.rows, columns).data(), count, dtype);
    } else {
      write_values(writer, tensor, values, count, dtype);
    }
  }

 private:
  const Contents& contents_;
  const WhichWeights which_;
  std::string loaded_;
  std::vector<float> values_;
};

int64_t bytes_of(const HfTensor& tensor, DType dtype) { return *num_elements(tensor.shape) * dtype_bytes(dtype); }

using File = std::span<const HfTensor>;

// Returns the fewest files in this order that have at most `most_bytes` each; a larger tensor has a file of its own.
std::vector<File> part_into_files(const std::vector<HfTensor>& tensors, DType dtype, int64_t most_bytes) {
  std::vector<File> files;
  size_t first = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = bytes_of(tensors[i], dtype);
    if (i > first && bytes + more > most_bytes) {
      files.push_back(File(tensors).subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += more;
  }
  files.push_back(File(tensors).subspan(first));
  return files;
}

// Writes one file, or several and their index. Returns the sizes of the files.
std::vector<int64_t> write_weights(NewFolder& folder, HfSource& source, const HfModel& model, DType dtype,
                                   int64_t most_bytes, const Progressed& progressed) {
  const std::vector<File> files = part_into_files(model.tensors, dtype, most_bytes);
  const bool is_single = files.size() == 1;
  std::vector<int64_t> sizes;
  Json map = Json::object();
  int64_t total = 0;
  for (const File& file : files) {
    const std::string name = is_single
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", sizes.size() + 1, files.size());
    std::vector<SafetensorsTensor> tensors;
    for (const HfTensor& tensor : file) tensors.push_back({tensor.name, dtype, tensor.shape});
    // transformers loads only files that say which library's tensors they hold.
    SafetensorsWriter writer(folder.path() / name, tensors, {{"format", "pt"}});
    for (const HfTensor& tensor : file) {
      source.write(tensor, writer, dtype);
      map[tensor.name] = name;
      total += bytes_of(tensor, dtype);
      progressed(bytes_of(tensor, dtype));
    }
    writer.finish();
    sizes.push_back(writer.file_bytes());
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  if (!is_single) folder.write("model.safetensors.index.json", json_text(index, 2) + '\n');
  return sizes;
}

bool is_added(const Tokenizer& tokenizer, int32_t id) {
  const std::vector<AddedToken>& added = tokenizer.parts().added;
  return std::any_of(added.begin(), added.end(), [&](const AddedToken& token) { return token.id == id; });
}

// Writes the tokenizer's file, and the files by which AutoTokenizer loads it and generation ends at its end token. A
// SentencePiece model does not say which class loads it.
void write_tokenizer(NewFolder& folder, const TokenizerRecord& record, int64_t sequence_length) {
  const auto tokenizer = tokenizer_of(record, std::string(tokenizer_name));
  Json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                {"model_max_length", sequence_length},
                {"clean_up_tokenization_spaces", false}};
  Json generation = Json::object();
  for (const char* use : {"bos_token", "eos_token", "pad_token"}) {
    if (!record.end_token) continue;
    if (is_added(*tokenizer, *record.end_token)) about[use] = std::string(tokenizer->text_of(*record.end_token));
    generation[fmt::format("{}_id", use)] = *record.end_token;
  }
  folder.write("generation_config.json", json_text(generation, 2) + '\n');
  if (tokenizer->sentencepiece() != nullptr)
    return folder.write("tokenizer.model", tokenizer->sentencepiece()->model());
  folder.write(std::string(tokenizer_name), with_added_ids(record.text));
  folder.write("tokenizer_config.json", json_text(about, 2) + '\n');
}

// Returns a note about the tokenizer files that transformers will lack; empty if none.
std::string tokenizer_note(const std::optional<TokenizerRecord>& record) {
  if (!record)
    return "no tokenizer is exported: the checkpoint does not know that of its data; copy its tokenizer.json there";
  if (record->is_bytes())
    return "no tokenizer is exported: \"bytes\" has no file that transformers reads; give it bytes as ids, "
           "and 256 as the end of a document";
  if (record->text.empty())
    return "no tokenizer is exported: the checkpoint has only its hash; copy its tokenizer.json there";
  const auto tokenizer = tokenizer_of(*record, std::string(tokenizer_name));
  if (tokenizer->sentencepiece() != nullptr)
    return "tokenizer.model is exported without tokenizer_config.json: write there which tokenizer_class loads it, as "
           "LlamaTokenizer";
  if (record->end_token && !is_added(*tokenizer, *record->end_token))
    return fmt::format(
        "the end token, id {}, is an ordinary piece, and tokenizer_config.json can name special tokens only: it has no "
        "eos_token, and generation_config.json has the id",
        *record->end_token);
  return "";
}

}  // namespace

HfExport export_hf(const fs::path& checkpoint, const fs::path& out, DType dtype, WhichWeights which,
                   const std::function<void(int64_t, int64_t)>& progress, int64_t most_file_bytes) {
  NewFolder folder(out, "--hf");
  const Contents contents = read_contents(checkpoint);
  const RunConfig config = saved_config(checkpoint, contents.stored.manifest);
  check_model(contents, config);
  require_weights(contents, which);
  HfModel model = hf_model(config, dtype);
  const std::optional<TokenizerRecord> tokenizer = read_tokenizer(checkpoint);
  const bool has_tokenizer = tokenizer && !tokenizer->text.empty() && !tokenizer->is_bytes();
  if (has_tokenizer && tokenizer->end_token) {
    model.config["bos_token_id"] = *tokenizer->end_token;
    model.config["eos_token_id"] = *tokenizer->end_token;
  }
  HfExport result{.architecture = model.hf.name,
                  .tensors = std::ssize(model.tensors),
                  .left_out = model.left_out,
                  .warning = model.warning,
                  .note = tokenizer_note(tokenizer)};
  for (const HfTensor& tensor : model.tensors) result.parameters += *num_elements(tensor.shape);
  const int64_t total = result.parameters * dtype_bytes(dtype);
  int64_t done = 0;
  HfSource source(contents, which);
  const std::vector<int64_t> sizes = write_weights(folder, source, model, dtype, most_file_bytes, [&](int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  });
  result.files = std::ssize(sizes);
  for (const int64_t bytes : sizes) result.bytes += bytes;
  folder.write("config.json", json_text(model.config, 2) + '\n');
  if (has_tokenizer) write_tokenizer(folder, *tokenizer, config.model.sequence_length);
  folder.publish();
  return result;
}

}  // namespace gptrain::checkpoint
