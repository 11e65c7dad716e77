// The algorithms that a process knows: the run's own, and those that earlier runs timed on such a device.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "algorithm_record.h"

namespace gptrain::inline cuda {

// A record is only text from a checkpoint or file, perhaps left by another build, another driver or a faulty device. A
// recorded algorithm is therefore checked once per process before use, as if timed now. One that fails is removed; a
// resumed run then has other bits than before, because the earlier ones were wrong or cannot be reproduced here. The
// warning says so.
class KnownAlgorithms {
 public:
  // Returns the fault of an algorithm here, with a description of the algorithm; empty: none.
  using FaultOf = std::function<std::string(const std::string& algorithm)>;

  // `empty`: a record for the device and library, without algorithms. `cache`: run.algorithm_cache.
  KnownAlgorithms(const AlgorithmRecord& empty, const std::string& cache);

  // Implement the methods of Products.
  std::string text() const { return run_.text(); }
  void use(const std::string& record) { warn(run_.take(record)); }
  std::string take_warnings() { return std::exchange(warnings_, ""); }
  void warn(const std::string& line);

  // Returns the product's algorithm in this run, checked or not; nullptr if undecided. Valid until the next call.
  const std::string* find(const std::string& product) const { return run_.find(product); }
  // Returns the algorithm of this run, or of earlier runs on such a device, once it has passed its check in this
  // process; the run uses it from then on. nullptr if none passes. Failing ones are removed with a warning that names
  // the product as `what`. Valid until the next call.
  const std::string* recall(const std::string& product, const std::string& what, const FaultOf& fault_of);
  // Stores an algorithm for this run.
  void keep(const std::string& product, const std::string& algorithm) { run_.set(product, algorithm); }
  // Stores an algorithm that was timed and passed its check, for this run and later ones on such a device.
  void keep_timed(const std::string& product, const std::string& algorithm);

 private:
  AlgorithmRecord run_;    // all algorithms that this run has used, chosen or taken over
  AlgorithmRecord timed_;  // algorithms timed by this run and by earlier ones on such a device
  std::filesystem::path cache_file_;
  std::set<std::pair<std::string, std::string>> sound_;  // (product, algorithm) pairs that passed the check
  std::string warnings_;
};

}  // namespace gptrain::cuda
