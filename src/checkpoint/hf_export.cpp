#include "checkpoint/hf_export.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/contents.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/model_check.h"
#include "checkpoint/safetensors.h"

namespace gptrain {
namespace fs = std::filesystem;
namespace {

void refuse_existing(const fs::path& out) {
  std::error_code unreadable;  // then creating it fails too and says why
  if (fs::exists(fs::symlink_status(out, unreadable))) {
    throw Error(ExitCode::usage, "--hf {}: already exists; name a folder that does not", out.string());
  }
}

std::vector<float> load_weight(const Contents& contents, const std::string& name) {
  const std::string key = "weight/" + name;
  const auto tensor = contents.tensors.find(key);
  if (tensor == contents.tensors.end()) {
    throw Error(ExitCode::checkpoint, "{} holds no tensor \"{}\", which its own config asks for",
                contents.checkpoint.string(), key);
  }
  const std::vector<int64_t>& shape = tensor->second.global_shape;
  std::vector<float> values(static_cast<size_t>(*num_elements(shape)));
  load_slices(contents, {{key, shape, std::vector<int64_t>(shape.size(), 0), shape, values.data()}});
  return values;
}

// [rows, columns] to [columns, rows], in square tiles that stay in the cache.
std::vector<float> transpose(const float* from, int64_t rows, int64_t columns) {
  constexpr int64_t tile = 32;
  std::vector<float> to(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; row += tile) {
    for (int64_t column = 0; column < columns; column += tile) {
      for (int64_t r = row; r < std::min(row + tile, rows); ++r) {
        for (int64_t c = column; c < std::min(column + tile, columns); ++c) {
          to[static_cast<size_t>(c * rows + r)] = from[r * columns + c];
        }
      }
    }
  }
  return to;
}

void write_values(SafetensorsWriter& writer, const float* values, int64_t count, DType dtype) {
  if (dtype == DType::f32) {
    writer.write(values, count * dtype_bytes(dtype));
    return;
  }
  std::vector<bf16> rounded(static_cast<size_t>(count));
  std::transform(values, values + count, rounded.begin(), to_bf16);
  writer.write(rounded.data(), count * dtype_bytes(dtype));
}

// Returns the size of the file.
int64_t write_weights(const fs::path& path, const Contents& contents, const HfModel& model, DType dtype,
                      const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<SafetensorsTensor> tensors;
  for (const HfTensor& tensor : model.tensors) tensors.push_back({tensor.name, dtype, tensor.shape});
  // transformers loads only files that say which library's tensors they hold.
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  std::string loaded;
  std::vector<float> source;
  int64_t done = 0;
  for (const HfTensor& tensor : model.tensors) {
    if (tensor.source != loaded) {
      source = {};  // before the next is taken
      source = load_weight(contents, tensor.source);
      loaded = tensor.source;
    }
    const int64_t count = *num_elements(tensor.shape);
    const int64_t columns = count / tensor.rows;
    const float* values = source.data() + tensor.first_row * columns;
    if (tensor.transposed) {
      write_values(writer, transpose(values, tensor.rows, columns).data(), count, dtype);
    } else {
      write_values(writer, values, count, dtype);
    }
    done += count * dtype_bytes(dtype);
    if (progress) progress(done, writer.file_bytes());
  }
  writer.finish();
  return writer.file_bytes();
}

void write_text(const fs::path& path, const std::string& text) {
  SyncedFile file(path);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.sync_and_close();
}

// The tokenizer's own file, and what makes AutoTokenizer load it. Of a model of SentencePiece that file says nothing of
// the class that would.
void write_tokenizer(const fs::path& folder, const TokenizerRecord& record, const RunConfig& config) {
  const auto tokenizer = tokenizer_of(record, std::string(tokenizer_name));
  if (tokenizer->sentencepiece() != nullptr)
    return write_text(folder / "tokenizer.model", tokenizer->sentencepiece()->model());
  nlohmann::ordered_json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                  {"model_max_length", config.model.sequence_length},
                                  {"clean_up_tokenization_spaces", false}};
  if (record.end_token) about["eos_token"] = tokenizer->text_of(*record.end_token);
  write_text(folder / tokenizer_name, record.text);
  write_text(folder / "tokenizer_config.json", json_text(about, 2) + '\n');
}

}  // namespace

HfExport export_hf(const fs::path& checkpoint, const fs::path& out, DType dtype,
                   const std::function<void(int64_t, int64_t)>& progress) {
  refuse_existing(out);
  const Contents contents = read_contents(checkpoint);
  const RunConfig config = saved_config(checkpoint, contents.stored.manifest);
  check_model(contents, config);
  HfModel model = hf_model(config, dtype);
  const std::optional<TokenizerRecord> tokenizer = read_tokenizer(checkpoint);
  const bool has_tokenizer = tokenizer && !tokenizer->text.empty() && !tokenizer->is_bytes();
  if (has_tokenizer && tokenizer->end_token) {
    model.config["bos_token_id"] = *tokenizer->end_token;
    model.config["eos_token_id"] = *tokenizer->end_token;
  }
  const fs::path target = plain_path(out);
  const fs::path temporary = target.parent_path() / (std::string(temporary_prefix) + target.filename().string());
  if (const std::string leftover = remove_folder(temporary); !leftover.empty()) {
    throw Error(ExitCode::checkpoint, leftover);
  }
  HfExport result{model.architecture, static_cast<int64_t>(model.tensors.size()), 0, 0, model.left_out, model.warning};
  for (const HfTensor& tensor : model.tensors) result.parameters += *num_elements(tensor.shape);
  try {
    create_folders(temporary);
    result.bytes = write_weights(temporary / "model.safetensors", contents, model, dtype, progress);
    write_text(temporary / "config.json", json_text(model.config, 2) + '\n');
    if (has_tokenizer) write_tokenizer(temporary, *tokenizer, config);
    sync_folder(temporary);
    refuse_existing(target);
    publish_folder(temporary, target);
  } catch (...) {
    remove_folder(temporary);
    throw;
  }
  return result;
}

}  // namespace gptrain
