// Which algorithm serves which product, as text: what a checkpoint's manifest keeps, what ranks tell each other, and
// what is kept on disk from one run to the next.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace gptrain {

// Of one kind of device and one version of one library: elsewhere the algorithms' names mean something else.
class AlgorithmRecord {
 public:
  AlgorithmRecord(std::string device, std::string library);

  // The name of the product's algorithm; nullptr where there is none. Valid until the record changes.
  const std::string* find(const std::string& product) const;
  void set(const std::string& product, std::string algorithm);
  void remove(const std::string& product) { algorithms_.erase(product); }

  // {"device": "..", "library": "..", "algorithms": {product: algorithm, ..}}, by the products' names: equal records
  // are equal text.
  std::string text() const;
  // Takes over the algorithms that `text`, as text() gives it, names: they take the place of what was known of the same
  // products. Returns a sentence for a warning when none could be taken over, as those of another device; else nothing.
  std::string take(std::string_view text);

  // Takes over the algorithms of a file. Returns a sentence for a warning when it cannot be read or holds something
  // else, and nothing when it has been read, or is missing.
  std::string read(const std::filesystem::path& file);
  // Adds the record to the file's, which is replaced in one piece, so that a reader finds all of it. Folders are made
  // as needed; what cannot be read is overwritten. Returns a sentence for a warning when it cannot be written.
  std::string write(const std::filesystem::path& file) const;

  // CACHE/products-DEVICE-LIBRARY.json of a folder. `cache` may also be "none": empty; or "auto": the folder gptrain in
  // $XDG_CACHE_HOME, or in $HOME/.cache where that is not set to an absolute path; empty where HOME is not set either.
  std::filesystem::path cache_file(const std::string& cache) const;

 private:
  // Why the text is of no use, or nothing.
  std::string take_or_say_why(std::string_view text);

  std::string device_, library_;
  std::map<std::string, std::string> algorithms_;
};

}  // namespace gptrain
