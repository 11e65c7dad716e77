// Reads the figures of a device's or a cluster's profile, a JSON object in which each figure is [value, "where it is
// from"].
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/json_text.h"

namespace gptrain {

// What a source begins with.
constexpr std::string_view figure_origins = "data sheet, measured, paper, calibrated, assumed";

// Values are asked for by path ("memory.bytes"). Faults are collected; finish throws them all.
class ProfileReader {
 public:
  // Read as configs are: comments are allowed, a key that is given twice is a fault. `origin` names the text in messages.
  // Error(usage): it is no JSON object.
  ProfileReader(std::string_view text, std::string origin);

  std::string word(const std::string& path);
  // Above 0, or from 0 on. 0 where there is a fault.
  double figure(const std::string& path) { return read(path, false); }
  double figure_from_0(const std::string& path) { return read(path, true); }
  // In (0, 1], or from 0 on.
  double share(const std::string& path) { return read_share(path, false); }
  double share_from_0(const std::string& path) { return read_share(path, true); }
  // What a figure says of where it is from; empty where there is a fault.
  std::string source(const std::string& path) const;
  // A whole number, at least 1; 1 where there is a fault.
  int64_t count(const std::string& path);
  // Rows of sizes and a value, of which a RateTable can be made; none where there is a fault.
  std::vector<std::vector<double>> table(const std::string& path, size_t num_sizes);
  // Of the object at the path; none where there is no object.
  std::vector<std::string> keys(const std::string& path) const;
  bool has(const std::string& path) const { return find(path) != nullptr; }
  void add_fault(const std::string& path, const std::string& what);

  // Error(usage), a line for each fault: what is missing, is no figure, has no source, or was never asked for.
  void finish();

 private:
  const Json* find(const std::string& path) const;
  // The value of a figure that has a source; null where there is a fault.
  const Json* sourced(const std::string& path, std::string_view what);
  double read(const std::string& path, bool from_0);
  double read_share(const std::string& path, bool from_0);
  void look_for_unread(const Json& object, const std::string& prefix);

  Json root_;
  std::string origin_;
  std::set<std::string> read_;
  std::vector<std::string> faults_;
};

// The text of a file. Error(usage): it cannot be read, or is too long.
std::string read_profile(const std::string& path);

// A built-in profile or a file: where its text is from, and the text.
struct ProfileText {
  std::string origin;
  std::string text;
};
// `built_in`: name and text. A word that names none of them and has a dot or a slash is a file. Error(usage): neither,
// with the nearest name; `what` is what it should be ("target").
struct BuiltInProfile {
  std::string_view name, text;
};
ProfileText find_profile(std::string_view what, std::string_view name, const std::vector<BuiltInProfile>& built_in);

}  // namespace gptrain
