#include "machine/profile_reader.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "config/faults.h"
#include "machine/rate_table.h"

namespace gptrain::inline machine {
namespace {

bool is_source(const Json& value) {
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  for (const std::string_view origin : {"data sheet", "measured", "paper", "calibrated", "assumed"})
    if (text.starts_with(origin)) return true;
  return false;
}

}  // namespace

ProfileReader::ProfileReader(std::string_view text, std::string origin) : origin_(std::move(origin)) {
  JsonText parsed = read_json(text);
  if (!parsed.syntax_error.empty()) throw Error(ExitCode::usage, "{}:{}", origin_, parsed.syntax_error);
  root_ = std::move(parsed.document);
  for (const DuplicateKey& duplicate : parsed.duplicates) add_fault(duplicate.path, "is given twice");
  if (!root_.is_object()) throw Error(ExitCode::usage, "{}: no JSON object", origin_);
}

const Json* ProfileReader::find(const std::string& path) const {
  const Json* at = &root_;
  std::istringstream keys(path);
  for (std::string key; std::getline(keys, key, '.');) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(key);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

void ProfileReader::add_fault(const std::string& path, const std::string& what) {
  faults_.push_back(fmt::format("{}: {}: {}", origin_, path, what));
}

std::string ProfileReader::word(const std::string& path) {
  read_.insert(path);
  const Json* const value = find(path);
  if (value != nullptr && value->is_string()) return one_line(value->get<std::string>());
  add_fault(path, "must be a string");
  return "";
}

const Json* ProfileReader::sourced(const std::string& path, std::string_view what) {
  read_.insert(path);
  const Json* const value = find(path);
  if (value == nullptr) {
    add_fault(path, "is missing");
  } else if (!value->is_array() || value->size() != 2) {
    add_fault(path, fmt::format("must be [{}, \"where it is from\"]", what));
  } else if (!is_source((*value)[1])) {
    add_fault(path, fmt::format("its source must begin with one of: {}", figure_origins));
  } else {
    return &(*value)[0];
  }
  return nullptr;
}

double ProfileReader::read(const std::string& path, bool from_0) {
  const Json* const value = sourced(path, "number");
  if (value == nullptr) return 0;
  if (!value->is_number()) {
    add_fault(path, "must be [number, \"where it is from\"]");
    return 0;
  }
  const double number = value->get<double>();
  // Limits far beyond any real machine, which keep predicted amounts in range.
  constexpr double least = 1e-12, most = 1e18;
  if (number >= least && number <= most) return number;
  if (number == 0 && from_0) return 0;
  if (number > 0) {
    add_fault(path, fmt::format("must be from {:g} to {:g}", least, most));
  } else {
    add_fault(path, from_0 ? "must not be negative" : "must be above 0");
  }
  return 0;
}

double ProfileReader::read_share(const std::string& path, bool from_0) {
  const double number = read(path, from_0);
  if (number > 1) add_fault(path, "must be at most 1");
  return number;
}

bool ProfileReader::flag(const std::string& path) {
  const Json* const value = sourced(path, "true or false");
  if (value == nullptr) return false;
  if (!value->is_boolean()) add_fault(path, "must be [true or false, \"where it is from\"]");
  return value->is_boolean() && value->get<bool>();
}

std::string ProfileReader::source(const std::string& path) const {
  const Json* const value = find(path);
  if (value == nullptr || !value->is_array() || value->size() != 2 || !(*value)[1].is_string()) return "";
  return one_line((*value)[1].get<std::string>());
}

int64_t ProfileReader::count(const std::string& path) {
  constexpr double most = 1e9;
  const double number = figure(path);
  if (number >= 1 && number <= most && number == std::floor(number)) return static_cast<int64_t>(number);
  if (number > 0) add_fault(path, "must be a whole number");
  return 1;
}

std::vector<std::vector<double>> ProfileReader::table(const std::string& path, size_t num_sizes) {
  const Json* const value = sourced(path, "rows");
  if (value == nullptr) return {};
  std::vector<std::vector<double>> rows;
  const auto is_row = [](const Json& row) {
    return row.is_array() && std::all_of(row.begin(), row.end(), [](const Json& number) { return number.is_number(); });
  };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_row)) {
    add_fault(path, "must be [[[size, ..., value], ...], \"where it is from\"]");
    return {};
  }
  for (const Json& row : *value) {
    std::vector<double>& numbers = rows.emplace_back();
    for (const Json& number : row) numbers.push_back(number.get<double>());
  }
  const std::string fault = RateTable::fault_of(rows, num_sizes);
  if (fault.empty()) return rows;
  add_fault(path, fault);
  return {};
}

std::vector<std::string> ProfileReader::keys(const std::string& path) const {
  std::vector<std::string> keys;
  const Json* const object = find(path);
  if (object == nullptr || !object->is_object()) return keys;
  for (const auto& [key, value] : object->items()) keys.push_back(key);
  return keys;
}

void ProfileReader::look_for_unread(const Json& object, const std::string& prefix) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix + key;
    if (value.is_object()) {
      look_for_unread(value, path + ".");
    } else if (!read_.contains(path)) {
      add_fault(path, "unknown key");
    }
  }
}

void ProfileReader::finish() {
  look_for_unread(root_, "");
  if (!faults_.empty()) throw Error(ExitCode::usage, Lines::join(faults_));
}

std::string read_profile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ExitCode::usage, "{}: cannot be read (give the path of a profile)", path);
  std::string text(static_cast<size_t>(max_config_bytes) + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(file.gcount());
  if (std::ssize(text) > max_config_bytes) throw Error(ExitCode::usage, "{}: too long for a profile", path);
  return text;
}

ProfileText find_profile(std::string_view what, std::string_view name, const std::vector<BuiltInProfile>& built_in) {
  std::string wanted(name);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::vector<std::string> names;
  for (const BuiltInProfile& profile : built_in) {
    if (profile.name == wanted) return {wanted, std::string(profile.text)};
    names.emplace_back(profile.name);
  }
  if (name.find_first_of("./") != std::string_view::npos) return {std::string(name), read_profile(std::string(name))};
  const std::string nearest = nearest_word(wanted, names);
  const bool close = word_distance(wanted, nearest) <= static_cast<int64_t>(wanted.size());
  const std::string hint = close ? fmt::format(" (did you mean {}?)", nearest) : "";
  throw Error(ExitCode::usage, "unknown {0} \"{1}\"{2}: valid {0}s are {3}, or give the path of a profile", what, name,
              hint, join(names, ", "));
}

}  // namespace gptrain::machine
