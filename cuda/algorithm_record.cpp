#include "algorithm_record.h"

#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <unistd.h>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "config/json_text.h"

namespace gptrain::inline cuda {
namespace {

namespace fs = std::filesystem;

// Makes a text usable in a file name.
std::string file_name_part(std::string_view text) {
  std::string part;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.';
    part += plain ? c : '_';
  }
  return part;
}

// Returns gptrain's cache folder by the XDG base directory specification; empty if the user has no home.
fs::path user_cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && fs::path(cache).is_absolute()) return fs::path(cache) / "gptrain";
  if (home == nullptr || *home == '\0') return {};
  return fs::path(home) / ".cache" / "gptrain";
}

// Returns a unique temporary name: runs and ranks may write the same file at the same time.
fs::path temporary_of(const fs::path& file) {
  static std::atomic<int> count{0};
  return file.string() + fmt::format(".{}-{}.tmp", getpid(), count++);
}

bool is_text(const Json& document, const char* key, const std::string& value) {
  const auto found = document.find(key);
  return found != document.end() && found->is_string() && found->get<std::string>() == value;
}

}  // namespace

AlgorithmRecord::AlgorithmRecord(std::string device, std::string library)
    : device_(std::move(device)), library_(std::move(library)) {}

const std::string* AlgorithmRecord::find(const std::string& product) const {
  const auto found = algorithms_.find(product);
  return found == algorithms_.end() ? nullptr : &found->second;
}

void AlgorithmRecord::set(const std::string& product, std::string algorithm) {
  algorithms_[product] = std::move(algorithm);
}

std::string AlgorithmRecord::text() const {
  Json document;
  document["device"] = device_;
  document["library"] = library_;
  Json& algorithms = document["algorithms"] = Json::object();
  for (const auto& [product, algorithm] : algorithms_) algorithms[product] = algorithm;
  return json_text(document, 2);
}

std::string AlgorithmRecord::take(std::string_view text) {
  const std::string fault = take_or_say_why(text);
  if (fault.empty()) return "";
  return fmt::format("the record of matrix products' algorithms {}: results may differ in bits from those of its run",
                     fault);
}

std::string AlgorithmRecord::take_or_say_why(std::string_view text) {
  const JsonText json = read_json(text);
  if (!json.syntax_error.empty()) return fmt::format("is not JSON ({})", json.syntax_error);
  const Json& document = json.document;
  if (!document.is_object()) return "is not a record of algorithms";
  if (!is_text(document, "device", device_)) return fmt::format("is of another device than {}", device_);
  if (!is_text(document, "library", library_)) return fmt::format("is of another library than {}", library_);
  const auto algorithms = document.find("algorithms");
  if (algorithms == document.end() || !algorithms->is_object()) return "is not a record of algorithms";
  for (const auto& [product, algorithm] : algorithms->items())
    if (!algorithm.is_string()) return fmt::format("has no algorithm for \"{}\"", product);
  for (const auto& [product, algorithm] : algorithms->items()) algorithms_[product] = algorithm.get<std::string>();
  return "";
}

std::string AlgorithmRecord::read(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error) && !error) return "";
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const std::string fault = stream ? take_or_say_why(text) : "cannot be read";
  return fault.empty() ? "" : fmt::format("{} {}; it is made anew", file.string(), fault);
}

std::string AlgorithmRecord::write(const fs::path& file) const {
  const fs::path temporary = temporary_of(file);
  try {
    fs::create_directories(file.parent_path());
    AlgorithmRecord all(device_, library_);
    all.read(file);
    for (const auto& [product, algorithm] : algorithms_) all.set(product, algorithm);
    OutputFile output(temporary, OutputFile::Mode::overwrite);
    output.write(all.text());
    output.sync();
    fs::rename(temporary, file);
  } catch (const std::exception& error) {  // from the file system, or an Error of OutputFile
    std::error_code ignored;
    fs::remove(temporary, ignored);
    return fmt::format("the timed algorithms are not kept for the next run: {}", error.what());
  }
  return "";
}

fs::path AlgorithmRecord::cache_file(const std::string& cache) const {
  const fs::path folder = cache == "auto" ? user_cache_folder() : cache == "none" ? fs::path() : fs::path(cache);
  if (folder.empty()) return {};
  return folder / fmt::format("products-{}-{}.json", file_name_part(device_), file_name_part(library_));
}

}  // namespace gptrain::cuda
