// A run's folder: made, kept to one process, measured, written to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"

namespace gptrain {

// Keeps a second run out of a run's folder for as long as it lives. Makes the folder where it is missing; unless `keep`
// is called, what it has made is gone again when it ends. Error(usage): the folder cannot be made or written, or
// another gptrain has it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& out);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // From here on the folder is the run's, and its name survives a crash of the machine. Error(checkpoint).
  void keep();

  const std::filesystem::path& out() const { return out_; }
  // What has become of the folder since: "was renamed to ...", "was removed", "is another one now"; empty while its
  // path leads to it.
  std::string whats_wrong();
  // Where what must not be lost goes, the best first: the folder, wherever it is now, and unmounted, too, if its disk
  // has it when it is mounted again; its path, if nothing is there or an empty folder; PATH.saved.
  std::vector<std::filesystem::path> places_to_save() const;
  // Whether only this process, by its descriptor, reaches a place.
  static bool is_out_of_sight(const std::filesystem::path& place);

 private:
  void note_missing_folders(const std::filesystem::path& out);
  std::error_code lock();  // operation_would_block: somebody else has the lock
  void remove_what_was_made() const;

  bool is_there(const std::filesystem::path& path) const;  // the folder itself
  bool is_taken_over();
  bool is_removed() const;
  bool is_in_memory() const;
  std::filesystem::path found_at() const;

  const std::filesystem::path out_;
  std::filesystem::path absolute_;                   // the same, for when the working folder is gone
  const std::filesystem::path path_;                 // of the lock
  std::vector<std::filesystem::path> made_folders_;  // the innermost first
  bool made_lock_ = false;
  bool kept_ = false;
  bool is_protected_ = true;  // false: the file system has no locks
  int descriptor_ = -1;
  int folder_ = -1;
};

// What a run writes to its folder besides checkpoints. Where that fails, or the folder is no longer what it was, the
// run has a fault to tell, but loses no state: it stops at the next chance, and saves where it still can.
class FolderWatch {
 public:
  // `out`: run.out. The lock is borrowed, and null on ranks that do not write.
  FolderWatch(std::filesystem::path out, FolderLock* lock) : out_(std::move(out)), lock_(lock) {}

  // Where the run writes: run.out until `move_to`.
  const std::filesystem::path& out() const { return out_; }
  void move_to(std::filesystem::path out) { out_ = std::move(out); }

  template <typename Write>
  void record(Write write) {
    try {
      write();
    } catch (const Error& error) {
      fail(error.what());
    }
  }
  // Something could not be written; the first fault stays.
  void fail(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }
  void look();  // after each step
  // Why nothing more can be written; empty if all is well.
  const std::string& fault() const { return fault_; }
  // Where checkpoints go: `out` as long as all is well. On the rank that writes.
  std::filesystem::path place_to_save();
  // After a place at which nothing could be saved: whether place_to_save now gives another. On the rank that writes.
  bool has_other_place();

 private:
  std::filesystem::path out_;
  FolderLock* lock_;
  std::string fault_;
  std::vector<std::filesystem::path> places_;  // once the folder is lost: those that are left, the next first
};

// Whether a disk has room for the checkpoints that a run will hold at a time beside the `kept` ones of its folder:
// those that come after `step`, checkpoint.keep_last and one that is being written; not those that
// checkpoint.keep_every keeps for good. `bytes`: of one. Empty if it has; else a warning. Error(checkpoint) where not
// even the first fits.
std::string checkpoint_shortage(const RunConfig& config, int64_t step, int64_t kept, int64_t bytes,
                                const std::filesystem::space_info& space);

// The file appears whole or not at all.
void write_whole_file(const std::filesystem::path& path, const std::string& text);

}  // namespace gptrain
