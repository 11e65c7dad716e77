#include "checkpoint/hf_files.h"

#include <cmath>
#include <fmt/format.h>
#include <set>
#include <system_error>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_scanner.h"
#include "base/printable.h"
#include "checkpoint/boxes.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

bool may_be_there(const fs::path& path) {
  std::error_code unreadable;  // then opening it says why
  return fs::exists(path, unreadable) || unreadable;
}

template <typename... Args>
[[noreturn]] void refuse_file(const fs::path& path, fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t max_bytes = 400;
  throw Error(ExitCode::checkpoint, "{} is damaged: {}", path.string(),
              printable(fmt::format(format, std::forward<Args>(args)...), max_bytes));
}

// Returns the file of each tensor.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const InputFile file(path);
  if (file.bytes() > max_tensor_header_bytes) refuse_file(path, "{} bytes are too many for an index", file.bytes());
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), file.bytes());
  nlohmann::json index;
  // The parser keeps the last of equal keys; an index that says two things about one tensor is refused.
  std::set<std::string> keys, tensors;
  const auto no_key_twice = [&](const std::string& key, int depth) {
    if (depth == 1) tensors.clear();
    if (!(depth == 1 ? keys : tensors).insert(key).second) refuse_file(path, "\"{}\" is given twice", key);
  };
  try {
    index = parse_json(text, no_key_twice, 2);
  } catch (const nlohmann::json::exception&) {
    refuse_file(path, "{}", describe_json_fault(text));
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse_file(path, "it has no object \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : index["weight_map"].items()) {
    if (!name.is_string()) refuse_file(path, "\"{}\" has no file's name", tensor);
    if (tensor.empty()) refuse_file(path, "a tensor has no name");
    const auto text_of = name.get<std::string>();
    if (text_of.empty() || text_of == "." || text_of == ".." || text_of.find('/') != std::string::npos ||
        text_of.find('\0') != std::string::npos) {
      refuse_file(path, "\"{}\" is not the name of a file in this folder", text_of);
    }
    files[tensor] = text_of;
  }
  if (files.empty()) refuse_file(path, "its \"weight_map\" is empty");
  return files;
}

[[noreturn]] void nothing_to_read(const fs::path& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!may_be_there(folder / name)) continue;
    throw Error(ExitCode::checkpoint,
                "{} is a file of PyTorch, which only Python reads; convert the folder with\n  python3 -c \"from "
                "transformers import AutoModelForCausalLM as M; M.from_pretrained('{}', "
                "torch_dtype='auto').save_pretrained('{}-safetensors')\"",
                (folder / name).string(), folder.string(), folder.string());
  }
  throw Error(ExitCode::checkpoint, "{} has neither {} nor {}", folder.string(), single_name, index_name);
}

}  // namespace

HfFiles::HfFiles(const fs::path& folder) {
  if (may_be_there(folder / single_name)) {
    add(folder / single_name);
    return;
  }
  const fs::path index = folder / index_name;
  if (!may_be_there(index)) nothing_to_read(folder);
  const std::map<std::string, std::string> map = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, name] : map) names.insert(name);
  for (const std::string& name : names) {
    if (!may_be_there(folder / name)) refuse_file(index, "\"{}\", which it names, is not there", name);
    add(folder / name);
  }
  for (const auto& [tensor, location] : tensors_) {
    const auto listed = map.find(tensor);
    if (listed == map.end() || folder / listed->second != files_[location.file])
      refuse_file(index, "it does not say that \"{}\" is in {}", tensor, files_[location.file].filename().string());
  }
  for (const auto& [tensor, name] : map) {
    if (!tensors_.contains(tensor)) refuse_file(folder / name, "the index says that it holds \"{}\"", tensor);
  }
}

void HfFiles::add(const fs::path& path) {
  const InputFile file(path);
  files_.push_back(path);
  for (SafetensorsTensor& tensor : read_safetensors_header(file).tensors) {
    const std::string name = tensor.name;
    if (name.empty()) refuse_file(path, "a tensor has no name");
    const auto [location, is_new] = tensors_.try_emplace(name, Location{files_.size() - 1, std::move(tensor)});
    if (!is_new)
      refuse_file(path, "it holds tensor \"{}\", which {} holds as well", name,
                  files_[location->second.file].filename().string());
  }
}

int64_t HfFiles::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, location] : tensors_) sum += location.tensor.bytes;
  return sum;
}

std::vector<float> HfFiles::read(const std::string& name) const {
  const Location& location = tensors_.at(name);
  const DType dtype = location.tensor.dtype;
  const InputFile file(files_[location.file]);
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    throw Error(ExitCode::checkpoint, "{}: tensor \"{}\" is {}; F32, F16 and BF16 are read", file.path().string(),
                printable(name), dtype_name(dtype));
  }
  std::vector<float> values;
  values.reserve(location.tensor.bytes / dtype_bytes(dtype));
  const auto append = [&]<typename Value>(const Value* from, int64_t bytes) {
    for (const Value* at = from; at < from + bytes / static_cast<int64_t>(sizeof(Value)); ++at) {
      values.push_back(to_float(*at));
      if (!std::isfinite(values.back()))
        refuse_file(file.path(), "tensor \"{}\" holds values that are not finite", name);
    }
  };
  stream_tensor(file, location.tensor.offset, location.tensor.bytes,
                [&](const std::byte* data, int64_t, int64_t bytes) {
                  if (dtype == DType::f32) return append(reinterpret_cast<const float*>(data), bytes);
                  if (dtype == DType::f16) return append(reinterpret_cast<const f16*>(data), bytes);
                  append(reinterpret_cast<const bf16*>(data), bytes);
                });
  return values;
}

}  // namespace gptrain::checkpoint
