// Differences between a resumed run and the run that saved its checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/load.h"
#include "data/dataset.h"

namespace gptrain::inline train {

// Changes for which the command line must ask (--accept-changes).
struct AcceptedChanges {
  bool data = false;      // the run goes on with other tokens than the checkpoint's sources hold
  bool schedule = false;  // the learning rate rises more than twofold after its decay
};

// Returns one line for each key that has changed, with both values, and the learning rates before and after. THROWS
// Error(usage) if the rate jumps and that is not accepted.
std::vector<std::string> config_changes(const ConfigChange& change, const Manifest& manifest, AcceptedChanges accepted);

struct ResumedData {
  Dataset train;
  RunRecord record;                  // record of the run from here on, with the changes of `saved` and `asked`
  std::vector<std::string> changes;  // changes of the sources, one line each
};
// Opens the training data for a run that resumes from a checkpoint. A changed mixture begins a phase at the checkpoint,
// and each source continues at the ordinal that it has reached. THROWS Error(data) if a source holds other tokens than
// the checkpoint's and that is not accepted; else throws like open_training_data.
ResumedData resume_data(const ConfigChange& change, const Manifest& manifest, AcceptedChanges accepted);

}  // namespace gptrain::train
