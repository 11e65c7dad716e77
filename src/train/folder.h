// A run's folder: its creation, its lock, free space, and files in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"

namespace gptrain::inline train {

// Locks a run's folder against other processes during its lifetime. Creates the folder if it is missing; the destructor
// removes the folders it has created unless `keep` was called. THROWS Error(usage) if the folder cannot be created or
// written, or if another gptrain has locked it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& out);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Keeps the folder for good, and makes its name survive a crash of the machine. THROWS Error(checkpoint).
  void keep();

  const std::filesystem::path& out() const { return out_; }
  // Returns the reason why the run can no longer use the folder by its path, e.g. "was removed while the run wrote to
  // it"; empty if it can, or if the file system does not answer now. Makes the lock's file again if it was removed.
  std::string whats_wrong();
  // Returns the places where the state can be saved, best first: the folder itself, wherever it is now, even unmounted
  // if its disk will have it when mounted again; its path, if nothing or an empty folder is there; PATH.saved, also for
  // a folder that is in place but cannot be written to any more.
  std::vector<std::filesystem::path> places_to_save() const;
  // Returns true if a place has no path of its own and is reached through this process's descriptor.
  static bool is_out_of_sight(const std::filesystem::path& path);

 private:
  void note_missing_folders(const std::filesystem::path& out);
  std::error_code lock();  // operation_would_block: another process has the lock
  void remove_what_was_made() const;

  bool is_there(const std::filesystem::path& path) const;  // true if `path` leads to the folder itself
  bool is_unanswered() const;
  bool is_taken_over();
  bool is_removed() const;
  bool is_in_memory() const;
  std::filesystem::path found_at() const;

  const std::filesystem::path out_;
  std::filesystem::path absolute_;                   // as out_, for use after the working folder is removed
  const std::filesystem::path path_;                 // the lock's file
  std::vector<std::filesystem::path> made_folders_;  // the innermost first
  bool made_lock_ = false;
  bool kept_ = false;
  bool is_protected_ = true;  // false: the file system has no locks
  int descriptor_ = -1;
  int folder_ = -1;
};

// Watches a run's folder and the files written to it besides checkpoints. If a write fails, or the folder is lost, it
// keeps the fault; the run then stops at the next chance and saves its state where it still can.
class FolderWatch {
 public:
  // `out`: run.out. The lock is borrowed, and null on ranks that do not write.
  FolderWatch(std::filesystem::path out, FolderLock* lock) : out_(std::move(out)), lock_(lock) {}

  // Returns the folder that the run writes to: run.out until `move_to`.
  const std::filesystem::path& out() const { return out_; }
  void move_to(std::filesystem::path out) { out_ = std::move(out); }

  // Calls write(), and records an Error that it throws.
  template <typename Write>
  void record(Write write) {
    try {
      write();
    } catch (const Error& error) {
      fail(error.what());
    }
  }
  // Records that something could not be written. Keeps the first fault.
  void fail(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }
  // Records a fault if the folder is lost (FolderLock::whats_wrong). Call after each step.
  void look();
  // Returns the reason why nothing more can be written; empty if there is none.
  const std::string& fault() const { return fault_; }
  // Returns the folder for checkpoints: `out` unless it is lost, or saving there has failed (has_other_place). Call on
  // the rank that writes.
  std::filesystem::path place_to_save();
  // Records a fault, and drops the place that place_to_save gave, at which saving has failed, with its folder if that
  // is new and empty. Returns true if place_to_save now gives another one, false if none is left. Call on the rank that
  // writes.
  bool has_other_place(const std::string& fault);

 private:
  std::filesystem::path out_;
  FolderLock* lock_;
  std::string fault_;
  std::vector<std::filesystem::path> places_;  // places left to try once the folder is lost, next one first
};

// Returns a warning if the disk lacks room for the checkpoints that a run will hold at a time beside the
// `num_checkpoints` ones of its folder: those after `step` that checkpoint.keep_last keeps, and one being written,
// without those that checkpoint.keep_every keeps for good. Empty if there is room. `bytes` is the size of one
// checkpoint. THROWS Error(checkpoint) if not even the first one fits.
std::string checkpoint_shortage(const CheckpointConfig& saving, const RunSettings& run, int64_t step,
                                int64_t num_checkpoints, int64_t bytes, const std::filesystem::space_info& space);

// Writes a file so that it appears whole or not at all. THROWS Error(usage) if it cannot be written.
void write_whole_file(const std::filesystem::path& path, const std::string& text);

}  // namespace gptrain::train
