// A folder of the transformers library for the tests of import.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/hf_export.h"
#include "checkpoint/hf_import.h"
#include "checkpoint/safetensors.h"
#include "hf_fixture.h"

namespace checkpoint_test {

using HfJson = nlohmann::json;

inline const std::string weights_name = "model.safetensors";
inline const std::string index_name = "model.safetensors.index.json";

struct Given {
  SafetensorsTensor tensor;
  std::vector<std::byte> bytes;
};

inline std::vector<Given> read_tensors(const std::filesystem::path& path) {
  const InputFile file(path);
  std::vector<Given> all;
  for (const SafetensorsTensor& tensor : read_safetensors_header(file).tensors) {
    all.push_back({tensor, std::vector<std::byte>(static_cast<size_t>(tensor.bytes))});
    file.read(tensor.offset, all.back().bytes.data(), tensor.bytes);
  }
  return all;
}

inline void write_tensors(const std::filesystem::path& path, const std::vector<Given>& given) {
  std::filesystem::remove(path);
  std::vector<SafetensorsTensor> tensors;
  for (const Given& one : given) tensors.push_back(one.tensor);
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  for (const Given& one : given) writer.write(one.bytes.data(), std::ssize(one.bytes));
  writer.finish();
}

// A folder as transformers writes it.
class HfFolder {
 public:
  explicit HfFolder(const Overrides& overrides = {}, DType dtype = DType::f32) : model_(overrides) {
    export_hf(model_.checkpoint(), path(), dtype);
  }
  std::filesystem::path path() const { return model_.out(); }
  std::filesystem::path file(const std::string& name) const { return path() / name; }
  const SavedModel& model() const { return model_; }

  // Imports into a new folder.
  HfImport import(const std::string& precision = "fp32") { return import_hf(path(), imported(true), precision); }
  std::filesystem::path checkpoint() { return list_checkpoints(imported(false)).back().path; }
  std::string refusal() {
    const std::string why = error_of([&] { import(); });
    CHECK(!std::filesystem::exists(imported(false)));
    return why;
  }

  HfJson config() const { return HfJson::parse(read_file(file("config.json"))); }
  void set_config(const HfJson& config) { write_file(file("config.json"), config.dump()); }
  // A null value removes the key.
  std::string refusal_with(const std::string& key, const HfJson& value) {
    const HfJson before = config();
    HfJson changed = before;
    changed[key] = value;
    set_config(changed);
    const std::string why = refusal();
    set_config(before);
    return why;
  }

  // Replaces one file by two and an index.
  void shard() {
    const std::vector<Given> all = read_tensors(file(weights_name));
    const auto half = all.begin() + std::ssize(all) / 2;
    write_tensors(file("a.safetensors"), {all.begin(), half});
    write_tensors(file("b.safetensors"), {half, all.end()});
    std::filesystem::remove(file(weights_name));
    HfJson map = HfJson::object();
    for (auto one = all.begin(); one != all.end(); ++one)
      map[one->tensor.name] = one < half ? "a.safetensors" : "b.safetensors";
    write_file(file(index_name), HfJson{{"metadata", HfJson::object()}, {"weight_map", map}}.dump());
  }

 private:
  std::filesystem::path imported(bool next) {
    if (next) ++count_;
    return model_.folder() / fmt::format("imported-{}", count_);
  }

  SavedModel model_;
  int count_ = 0;
};

}  // namespace checkpoint_test
