// Reads the profile of a device, cluster or software: a JSON object in which each figure is [value, "source"].
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/json_text.h"

namespace gptrain::inline machine {

// A figure's source begins with one of these.
constexpr std::string_view figure_origins = "data sheet, measured, paper, calibrated, assumed";

// Values are read by path ("memory.bytes"). A fault does not throw: it is collected, and finish() throws them all.
class ProfileReader {
 public:
  // Parses the text as configs are parsed: comments are allowed, a repeated key is a fault. `origin` names the text in
  // messages. THROWS Error(usage) if the text is no JSON object.
  ProfileReader(std::string_view text, std::string origin);

  // Returns a string, which has no source; empty if there is a fault.
  std::string word(const std::string& path);
  // Returns a number from 1e-12 to 1e18; 0 if there is a fault. figure_from_0 allows 0.
  double figure(const std::string& path) { return read(path, false); }
  double figure_from_0(const std::string& path) { return read(path, true); }
  // Returns a number in (0, 1]; share_from_0 allows 0. A number above 1 is a fault.
  double share(const std::string& path) { return read_share(path, false); }
  double share_from_0(const std::string& path) { return read_share(path, true); }
  // Returns true or false, which has a source as a figure has; false if there is a fault.
  bool flag(const std::string& path);
  // Returns the source of a figure; empty if there is none.
  std::string source(const std::string& path) const;
  // Returns a whole number of at least 1; 1 if there is a fault.
  int64_t count(const std::string& path);
  // Returns rows of sizes and a value for a RateTable; empty if there is a fault.
  std::vector<std::vector<double>> table(const std::string& path, size_t num_sizes);
  // Returns the keys of the object at the path; empty if no object is there.
  std::vector<std::string> keys(const std::string& path) const;
  bool has(const std::string& path) const { return find(path) != nullptr; }
  void add_fault(const std::string& path, const std::string& what);

  // Call last. THROWS Error(usage) with a line for each fault; a key that was never read is a fault, too.
  void finish();

 private:
  const Json* find(const std::string& path) const;
  // Returns the value beside its source; null, with a fault added, if it is missing or has no source.
  const Json* sourced(const std::string& path, std::string_view what);
  double read(const std::string& path, bool from_0);
  double read_share(const std::string& path, bool from_0);
  void look_for_unread(const Json& object, const std::string& prefix);

  Json root_;
  std::string origin_;
  std::set<std::string> read_;
  std::vector<std::string> faults_;
};

// Returns the text of a file. THROWS Error(usage) if it cannot be read or is too long.
std::string read_profile(const std::string& path);

struct ProfileText {
  std::string origin;  // name of a built-in profile, or path of a file
  std::string text;
};
struct BuiltInProfile {
  std::string_view name, text;
};
// Returns the built-in profile of that name (case-insensitive), or else the file at that path, if `name` has a dot or a
// slash. THROWS Error(usage) otherwise, with the nearest name. `what` names the kind of profile in messages ("target").
ProfileText find_profile(std::string_view what, std::string_view name, const std::vector<BuiltInProfile>& built_in);

}  // namespace gptrain::machine
