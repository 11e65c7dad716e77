// Runs every reader on its corpus and on fixed mutants of it: fuzz CORPUS SECONDS [SEED]. run_libfuzzer.sh runs the
// same readers under libFuzzer, which looks for new paths.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

namespace {

using Random = std::mt19937_64;

std::vector<std::string> corpus_of(const std::filesystem::path& folder) {
  std::vector<std::string> corpus = {""};
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

size_t below(Random& random, size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random() % limit); }

std::string mutant(Random& random, const std::vector<std::string>& corpus) {
  static const std::vector<std::string> words = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 "\"",
                                                 ":",
                                                 ",",
                                                 "-1",
                                                 "0",
                                                 "9223372036854775807",
                                                 "18446744073709551616",
                                                 "1e308",
                                                 "null",
                                                 "true",
                                                 std::string(1, '\0'),
                                                 std::string(8, '\xff'),
                                                 std::string(8, '\0'),
                                                 "\\u0000",
                                                 "\xc3\xa9",
                                                 std::string(100, '['),
                                                 "step",
                                                 "shape",
                                                 "GPTR"};
  std::string text = corpus[below(random, corpus.size())];
  for (size_t changes = 1 + below(random, 4); changes > 0; --changes) {
    const size_t at = below(random, text.size() + 1);
    switch (random() % 6) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 2:
        text.erase(at, 1 + below(random, 20));
        break;
      case 3:
        text.insert(at, words[below(random, words.size())]);
        break;
      case 4: {
        const std::string& other = corpus[below(random, corpus.size())];
        const size_t from = below(random, other.size());
        text.insert(at, other, from, below(random, 200));
        break;
      }
      default:
        text.resize(at);
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("usage: fuzz CORPUS SECONDS [SEED]\n"), 2;
  using Clock = std::chrono::steady_clock;
  const double seconds = std::atof(argv[2]);
  Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  for (const fuzz::Target& target : fuzz::targets()) {
    const std::vector<std::string> corpus = corpus_of(std::filesystem::path(argv[1]) / target.name);
    for (const std::string& text : corpus) fuzz::run(target, text);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    int64_t runs = 0;
    for (; Clock::now() < end; ++runs) fuzz::run(target, mutant(random, corpus));
    fmt::print("{}: {} of the corpus, {} mutants\n", target.name, corpus.size(), runs);
    // A missing corpus would make the test empty.
    if (corpus.size() < 2) return 1;
  }
  return 0;
}
