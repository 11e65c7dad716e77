#include "known_algorithms.h"

#include <fmt/format.h>

namespace gptrain::inline cuda {

KnownAlgorithms::KnownAlgorithms(const AlgorithmRecord& empty, const std::string& cache)
    : run_(empty), timed_(empty), cache_file_(timed_.cache_file(cache)) {
  if (!cache_file_.empty()) warn(timed_.read(cache_file_));
}

void KnownAlgorithms::warn(const std::string& line) {
  if (!line.empty()) warnings_ += line + '\n';
}

const std::string* KnownAlgorithms::recall(const std::string& product, const std::string& what,
                                           const FaultOf& fault_of) {
  std::string struck;
  for (AlgorithmRecord* record : {&run_, &timed_}) {
    const std::string* const found = record->find(product);
    if (found == nullptr) continue;
    const std::string algorithm = *found;
    const bool of_run = record == &run_;
    if (algorithm != struck) {
      const std::string fault = sound_.contains({product, algorithm}) ? "" : fault_of(algorithm);
      if (fault.empty()) {
        sound_.emplace(product, algorithm);
        run_.set(product, algorithm);
        return run_.find(product);
      }
      warn(fmt::format("{} ({}): the algorithm that {} names is not used: {}{}", what, product,
                       of_run ? "the run's record" : cache_file_.string(), fault,
                       of_run ? "; results may differ in bits from those of the run so far" : ""));
    }
    struck = algorithm;
    record->remove(product);
  }
  return nullptr;
}

void KnownAlgorithms::keep_timed(const std::string& product, const std::string& algorithm) {
  sound_.emplace(product, algorithm);
  run_.set(product, algorithm);
  timed_.set(product, algorithm);
  if (!cache_file_.empty()) warn(timed_.write(cache_file_));
}

}  // namespace gptrain::cuda
