#include "checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/base64.h"
#include "base/crc32c.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_reason.h"
#include "base/printable.h"
#include "checkpoint/fault.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"

namespace gptrain::inline checkpoint {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* manifest_format = "gptrain checkpoint";
constexpr int64_t manifest_version = 1;

// The last member, always of one length, so that the checksum covers every byte before it.
std::string format_tail(uint32_t crc) { return fmt::format(",\n  \"crc32c\": \"{:08x}\"\n}}\n", crc); }

const size_t tail_bytes = format_tail(0).size();

std::string format_crc(uint32_t crc) { return fmt::format("{:08x}", crc); }

const json& member(const json& object, const std::string& key) {
  if (!object.is_object() || !object.contains(key)) fault("\"{}\" is missing", key);
  return object[key];
}

int64_t count_of(const json& object, const std::string& key) {
  const json& value = member(object, key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    fault("\"{}\" is {}, which is not a count", key, json_text(value));
  }
  return value.get<int64_t>();
}

std::string text_of(const json& object, const std::string& key) {
  const json& value = member(object, key);
  if (!value.is_string()) fault("\"{}\" is not a text", key);
  return value.get<std::string>();
}

uint32_t crc_of(const json& object, const std::string& key) {
  const std::string text = text_of(object, key);
  uint32_t crc = 0;
  std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (format_crc(crc) != text) fault("\"{}\" is \"{}\", which is not eight hexadecimal digits", key, text);
  return crc;
}

LossScale parse_loss_scale(const json& object) {
  const int64_t value = count_of(object, "value");
  if (!std::has_single_bit(static_cast<uint64_t>(value)) || value > static_cast<int64_t>(most_loss_scale))
    fault("\"loss_scale\" is {}, which is not a power of two up to 2^24", value);
  return {static_cast<float>(value), count_of(object, "good_steps")};
}

std::string format_amaxes(const std::vector<float>& amaxes) {
  std::string bytes;
  for (const float amax : amaxes) {
    const uint16_t bits = to_bf16(amax).bits;
    bytes.push_back(static_cast<char>(bits & 0xffU));
    bytes.push_back(static_cast<char>(bits >> 8));
  }
  return to_base64(bytes);
}

std::vector<float> parse_amaxes(const std::string& text) {
  const std::optional<std::string> bytes = from_base64(text);
  if (!bytes || bytes->size() % 2 != 0) fault("\"amax_history\" is not base64 of numbers of 16 bits");
  std::vector<float> amaxes;
  for (size_t i = 0; i < bytes->size(); i += 2) {
    const auto low = static_cast<uint8_t>((*bytes)[i]), high = static_cast<uint8_t>((*bytes)[i + 1]);
    amaxes.push_back(to_float(bf16{static_cast<uint16_t>(low | high << 8)}));
    if (!(amaxes.back() >= 0) || std::isinf(amaxes.back())) fault("\"amax_history\" has a number that is no amax");
  }
  return amaxes;
}

// Returns true if the tokenizer's text is saved in a file of its own.
bool needs_file(const TokenizerRecord& tokenizer) { return !tokenizer.text.empty() && !tokenizer.is_bytes(); }

ordered_json tokenizer_object(TokenizerRecord tokenizer) {
  const bool in_file = needs_file(tokenizer);
  if (in_file) tokenizer.text.clear();
  ordered_json object = tokenizer_record_json(tokenizer);
  if (in_file) object["file"] = tokenizer_name;
  return object;
}

void parse_tokenizer(const json& object, Manifest& manifest) {
  try {
    manifest.tokenizer = parse_tokenizer_record(object);
  } catch (const json::exception& e) {
    fault("its \"tokenizer\" cannot be used: {}", json_reason(e));
  }
  if (!object.contains("file")) return;
  if (object["file"] != tokenizer_name) fault("the \"file\" of its tokenizer is not \"{}\"", tokenizer_name);
  manifest.has_tokenizer_file = true;
}

ordered_json rollback_object(const RunProgress& progress) {
  ordered_json left_out = ordered_json::array();
  for (const SampleRange& range : progress.left_out)
    left_out.push_back({{"first", range.first}, {"count", range.count}});
  return {{"count", progress.rollbacks},
          {"left_out", std::move(left_out)},
          {"losses", progress.losses.window},
          {"above", progress.losses.above}};
}

// Reads losses; null, JSON's form of a loss that is not finite, becomes NaN.
std::vector<double> losses_of(const json& object, const std::string& key) {
  const json& list = member(object, key);
  if (!list.is_array()) fault("\"{}\" is not a list", key);
  std::vector<double> losses;
  for (const json& loss : list) {
    if (!loss.is_number() && !loss.is_null()) fault("one of \"{}\" is not a number", key);
    losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  }
  return losses;
}

void parse_rollback(const json& object, RunProgress& progress) {
  progress.rollbacks = count_of(object, "count");
  const json& left_out = member(object, "left_out");
  if (!left_out.is_array()) fault("\"left_out\" is not a list");
  for (const json& range : left_out) {
    progress.left_out.push_back({count_of(range, "first"), count_of(range, "count")});
    constexpr int64_t most = int64_t{1} << 60;  // so that sums of them are numbers, too
    if (progress.left_out.back().first > most || progress.left_out.back().count > most)
      fault("\"left_out\" is beyond any data");
  }
  progress.losses.window = losses_of(object, "losses");
  progress.losses.above = losses_of(object, "above");
  if (std::any_of(progress.losses.window.begin(), progress.losses.window.end(), [](double x) { return std::isnan(x); }))
    fault("one of \"losses\" is not a number");
}

ordered_json number_or_null(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

// The members "data", "validation", "mixture" and "history", where there are any.
void add_run(const RunRecord& run, ordered_json& root) {
  if (!run.sources.empty()) root["data"] = ordered_json::array();
  for (const SourceRecord& source : run.sources) root["data"].push_back(source_record_json(source));
  if (!run.validation.empty()) root["validation"] = ordered_json::array();
  for (const SourceRecord& source : run.validation) root["validation"].push_back(source_record_json(source));
  if (!run.mixture.empty()) root["mixture"] = ordered_json::array();
  for (const MixturePhase& phase : run.mixture)
    root["mixture"].push_back({{"until_sample", phase.until_sample}, {"weights", phase.weights}});
  if (!run.history.empty()) root["history"] = ordered_json::array();
  for (const ResumeRecord& resume : run.history)
    root["history"].push_back({{"step", resume.step}, {"changes", resume.changes}});
}

void parse_run(const json& root, RunRecord& run) {
  try {
    for (const json& source : root.value("data", json::array())) run.sources.push_back(parse_source_record(source));
    for (const json& source : root.value("validation", json::array()))
      run.validation.push_back(parse_source_record(source));
    for (const json& phase : root.value("mixture", json::array()))
      run.mixture.push_back({count_of(phase, "until_sample"), phase.at("weights").get<std::vector<double>>()});
    for (const json& resume : root.value("history", json::array()))
      run.history.push_back({count_of(resume, "step"), resume.at("changes").get<std::vector<std::string>>()});
  } catch (const json::exception& e) {
    fault("its \"data\", \"validation\", \"mixture\" or \"history\" cannot be used: {}", json_reason(e));
  }
  const auto is_weight = [](double weight) { return weight >= 0; };
  for (size_t i = 0; i < run.mixture.size(); ++i) {
    const std::vector<double>& weights = run.mixture[i].weights;
    const bool follows =
        i == 0 || i + 1 == run.mixture.size() || run.mixture[i - 1].until_sample < run.mixture[i].until_sample;
    if (!follows || weights.size() != run.sources.size() || !std::all_of(weights.begin(), weights.end(), is_weight) ||
        std::none_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; }))
      fault("its \"mixture\" does not fit its sources");
  }
}

FileRecord parse_file(const json& object) {
  FileRecord file;
  file.name = text_of(object, "name");
  if (file.name.empty() || file.name.find('/') != std::string::npos || file.name.find('\0') != std::string::npos ||
      file.name == "." || file.name == "..") {
    fault("\"{}\" is not the name of a file in the checkpoint's folder", file.name);
  }
  file.bytes = count_of(object, "bytes");
  file.header_crc32c = crc_of(object, "header_crc32c");
  const json& slices = member(object, "slices");
  if (!slices.is_object()) fault("\"slices\" of file \"{}\" is not an object", file.name);
  for (const auto& [key, crc] : slices.items()) file.slices_crc32c[key] = crc_of(slices, key);
  return file;
}

ordered_json file_object(const FileRecord& file) {
  json slices = json::object();
  for (const auto& [key, crc] : file.slices_crc32c) slices[key] = format_crc(crc);
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_crc32c", format_crc(file.header_crc32c)},
          {"slices", std::move(slices)}};
}

StoredManifest parse_manifest(const std::string& text) {
  const size_t covered = text.size() < tail_bytes ? 0 : text.size() - tail_bytes;
  if (text.substr(covered) != format_tail(crc32c(text.data(), covered))) {
    fault("its checksum does not match its content");
  }
  // The parser keeps the last of equal keys; a manifest that says two things is refused.
  std::set<std::string> keys;
  const auto no_key_twice = [&](const std::string& key, int) {
    if (!keys.insert(key).second) fault("\"{}\" is given twice", key);
  };
  json root;
  try {
    root = parse_json(text, no_key_twice);
  } catch (const json::exception& e) {
    fault("it is not valid JSON: {}", json_reason(e));
  }
  if (text_of(root, "format") != manifest_format) fault("\"format\" is not \"{}\"", manifest_format);
  const int64_t version = count_of(root, "version");
  if (version != manifest_version) {
    fault("it has format version {}; this program reads version {}: use the program that wrote it", version,
          manifest_version);
  }
  StoredManifest stored;
  Manifest& manifest = stored.manifest;
  RunProgress& progress = manifest.progress;
  progress.step = count_of(root, "step");
  progress.samples = count_of(root, "samples");
  progress.updates = count_of(root, "updates");
  progress.skipped = count_of(root, "skipped");
  progress.skipped_in_a_row = count_of(root, "skipped_in_a_row");
  if (!member(root, "seed").is_number_unsigned()) fault("\"seed\" is not a number of 64 bits");
  manifest.seed = root["seed"].get<uint64_t>();
  manifest.world_size = count_of(root, "world_size");
  if (manifest.world_size == 0) fault("\"world_size\" is 0, which is no number of ranks");
  manifest.build = text_of(root, "build");
  manifest.config = text_of(root, "config");
  if (root.contains("algorithms")) manifest.algorithms = text_of(root, "algorithms");
  if (root.contains("loss_scale")) manifest.loss_scale = parse_loss_scale(root["loss_scale"]);
  if (root.contains("amax_history")) manifest.amax_history = parse_amaxes(text_of(root, "amax_history"));
  if (root.contains("tokenizer")) parse_tokenizer(root["tokenizer"], manifest);
  if (root.contains("rollback")) parse_rollback(root["rollback"], progress);
  if (root.contains("loss")) {
    if (!root["loss"].is_number() && !root["loss"].is_null()) fault("\"loss\" is not a number");
    progress.loss = root["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN() : root["loss"].get<double>();
  }
  if (root.contains("lowest_loss")) {
    if (!root["lowest_loss"].is_number()) fault("\"lowest_loss\" is not a number");
    progress.lowest_loss = root["lowest_loss"].get<double>();
  }
  parse_run(root, manifest.run);
  stored.num_tensors = count_of(root, "tensors");
  if (!member(root, "files").is_array()) fault("\"files\" is not a list");
  std::set<std::string> names;
  for (const json& object : root["files"]) {
    stored.files.push_back(parse_file(object));
    if (!names.insert(stored.files.back().name).second) fault("file \"{}\" is listed twice", stored.files.back().name);
  }
  return stored;
}

}  // namespace

std::string format_file_records(const std::vector<FileRecord>& records) {
  ordered_json list = ordered_json::array();
  for (const FileRecord& record : records) list.push_back(file_object(record));
  return json_text(list);
}

std::vector<FileRecord> parse_file_records(const std::string& text) {
  try {
    std::vector<FileRecord> records;
    for (const json& record : parse_json(text)) records.push_back(parse_file(record));
    return records;
  } catch (const json::exception& e) {
    throw Error(ExitCode::checkpoint, "a rank's record of its files is not valid JSON: {}", json_reason(e));
  }
}

namespace {

// Returns the manifest without its tail, as JSON.
ordered_json manifest_object(const StoredManifest& stored) {
  const Manifest& manifest = stored.manifest;
  const RunProgress& progress = manifest.progress;
  ordered_json root = {{"format", manifest_format},
                       {"version", manifest_version},
                       {"step", progress.step},
                       {"samples", progress.samples},
                       {"updates", progress.updates},
                       {"skipped", progress.skipped},
                       {"skipped_in_a_row", progress.skipped_in_a_row},
                       {"seed", manifest.seed},
                       {"world_size", manifest.world_size},
                       {"build", manifest.build},
                       {"config", manifest.config}};
  if (!manifest.algorithms.empty()) root["algorithms"] = manifest.algorithms;
  if (manifest.loss_scale) {
    root["loss_scale"] = {{"value", static_cast<int64_t>(manifest.loss_scale->value)},
                          {"good_steps", manifest.loss_scale->good_steps}};
  }
  if (!manifest.amax_history.empty()) root["amax_history"] = format_amaxes(manifest.amax_history);
  if (manifest.tokenizer) root["tokenizer"] = tokenizer_object(*manifest.tokenizer);
  if (progress.rollbacks > 0 || !progress.losses.window.empty()) root["rollback"] = rollback_object(progress);
  if (progress.loss) root["loss"] = number_or_null(*progress.loss);
  if (progress.lowest_loss) root["lowest_loss"] = *progress.lowest_loss;
  add_run(manifest.run, root);
  root["tensors"] = stored.num_tensors;
  root["files"] = ordered_json::array();
  for (const FileRecord& file : stored.files) root["files"].push_back(file_object(file));
  return root;
}

}  // namespace

std::string format_manifest(const StoredManifest& stored) {
  std::string text;
  try {
    text = json_text(manifest_object(stored), 2);
  } catch (const json::exception&) {
    throw Error(ExitCode::checkpoint, "cannot write a manifest: the config or a name in it is not valid UTF-8");
  }
  text.resize(text.size() - 2);  // "\n}", which the tail brings
  text += format_tail(crc32c(text.data(), text.size()));
  try {
    // A manifest that could not be read again (a negative count) would be a checkpoint lost.
    parse_manifest(text);
  } catch (const Error& e) {
    throw Error(e.code(), "cannot write a manifest: {}", e.what());
  }
  return text;
}

void write_manifest(const std::filesystem::path& checkpoint, const StoredManifest& stored) {
  const std::string text = format_manifest(stored);
  SyncedFile file(checkpoint / manifest_name);
  file.write(text.data(), static_cast<int64_t>(text.size()));
  file.sync_and_close();
}

StoredManifest load_manifest(const std::filesystem::path& checkpoint) {
  std::error_code unreadable;  // then opening it says why
  if (!std::filesystem::exists(checkpoint / manifest_name, unreadable) && !unreadable) {
    throw Error(ExitCode::checkpoint, "{} is not a complete checkpoint: it has no {}", checkpoint.string(),
                manifest_name);
  }
  const InputFile file(checkpoint / manifest_name);
  if (file.bytes() > max_manifest_bytes) {
    throw Error(ExitCode::checkpoint, "{} cannot be used: {} bytes are too many for a manifest", file.path().string(),
                file.bytes());
  }
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), file.bytes());
  try {
    return parse_manifest(text);
  } catch (const Error& e) {
    throw Error(e.code(), "{} cannot be used: {}", file.path().string(), e.what());
  }
}

}  // namespace gptrain::checkpoint
