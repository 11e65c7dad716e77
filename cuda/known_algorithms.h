// The algorithms that a process knows of: the run's own, and those that earlier runs timed on such a device.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "algorithm_record.h"

namespace gptrain {

// A record is only a text, of a checkpoint or a file, that another build, another driver or a faulty device may have
// left. So what it names is checked once in a process before it is used, as if it had been timed there. What fails is
// struck out, though a resumed run then has other bits than the run before it: those were wrong, or are not those that
// the algorithm gives here; the warning says so.
class KnownAlgorithms {
 public:
  // What is wrong with an algorithm here, and what it is, for people; empty: nothing.
  using FaultOf = std::function<std::string(const std::string& algorithm)>;

  // `empty`: of the device and library. `cache`: run.algorithm_cache.
  KnownAlgorithms(const AlgorithmRecord& empty, const std::string& cache);

  // See Products.
  std::string text() const { return run_.text(); }
  void use(const std::string& record) { warn(run_.take(record)); }
  std::string take_warnings() { return std::exchange(warnings_, ""); }
  void warn(const std::string& line);

  // What serves the product in this run, checked or not; nullptr where that is open. Valid until the next call.
  const std::string* find(const std::string& product) const { return run_.find(product); }
  // What serves the product in this run, or is the device's from an earlier one, when it has passed its check in this
  // process: now, or before. It serves the run from then on. nullptr where there is none that does; those that fail are
  // struck out, each with a warning that says of `what`, the product, it is. Valid until the next call.
  const std::string* recall(const std::string& product, const std::string& what, const FaultOf& fault_of);
  // For this run.
  void keep(const std::string& product, const std::string& algorithm) { run_.set(product, algorithm); }
  // What was timed and has passed its check: for this run and later ones on such a device.
  void keep_timed(const std::string& product, const std::string& algorithm);

 private:
  AlgorithmRecord run_;    // of all that was run or chosen here, or taken over
  AlgorithmRecord timed_;  // by this run and earlier ones on such a device
  std::filesystem::path cache_file_;
  std::set<std::pair<std::string, std::string>> sound_;  // product and algorithm
  std::string warnings_;
};

}  // namespace gptrain
