// The backend and the working files of updates whose optimizer state is on disk.
#pragma once

#include <cstdint>
#include <memory>

#include "step/training_step.h"
#include "storage/working_files.h"

namespace gptrain::inline step {

class UpdateResources {
 public:
  // Creates nothing if all of the design's state is in memory. `ops`: backend of the ops, on a CPU. THROWS as the
  // constructor of WorkingFiles.
  UpdateResources(const StepDesign& design, const Backend& ops, int64_t rank);

  // Returns the backend and the files of the updates, which this object owns; null if it created none.
  UpdateDevice device() const { return {.backend = backend_.get(), .files = files_.get()}; }
  const WorkingFiles* files() const { return files_.get(); }  // null: none

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<WorkingFiles> files_;
};

}  // namespace gptrain::step
