// Records which library algorithm serves which product, as text: stored in a checkpoint's manifest, exchanged between
// ranks, and cached on disk between runs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace gptrain::inline cuda {

// The algorithms for one kind of device and one library version; their names are meaningless for others.
class AlgorithmRecord {
 public:
  AlgorithmRecord(std::string device, std::string library);

  // Returns the name of the product's algorithm; nullptr if unknown. Valid until the record changes.
  const std::string* find(const std::string& product) const;
  void set(const std::string& product, std::string algorithm);
  void remove(const std::string& product) { algorithms_.erase(product); }

  // Returns {"device": "..", "library": "..", "algorithms": {product: algorithm, ..}}, sorted by product: equal records
  // give equal text.
  std::string text() const;
  // Adds the algorithms in `text`, which has the form of text(), replacing known ones of the same products. Returns a
  // warning if none could be added, as when they are for another device; else "".
  std::string take(std::string_view text);

  // Adds the algorithms of a file. Returns a warning if it cannot be read or is not a record; "" on success or if the
  // file does not exist.
  std::string read(const std::filesystem::path& file);
  // Adds this record to the file, which is replaced in one step, so that readers see a whole file. Creates folders as
  // needed; overwrites an unreadable file. Returns a warning if it cannot be written; else "".
  std::string write(const std::filesystem::path& file) const;

  // Returns `cache`/products-DEVICE-LIBRARY.json. `cache` is a folder, or "none": returns an empty path; or "auto": the
  // folder gptrain in $XDG_CACHE_HOME, or in $HOME/.cache if that is not an absolute path; empty if HOME is unset too.
  std::filesystem::path cache_file(const std::string& cache) const;

 private:
  // Returns the reason why the text cannot be used; "" if it was added.
  std::string take_or_say_why(std::string_view text);

  std::string device_, library_;
  std::map<std::string, std::string> algorithms_;
};

}  // namespace gptrain::cuda
