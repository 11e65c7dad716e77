// Measures the speed from JSONL to tokens of "bytes", beside simdjson that only parses the same lines. Run as
//   bench_jsonl FILE.jsonl FOLDER
// where FOLDER, for the token file, should be in memory (/dev/shm). Reports processor time of all threads, the best of
// five.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <simdjson.h>
#include <string>
#include <string_view>

#include "data/pack.h"

namespace {

constexpr int num_trials = 5;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Times `work` only, not `prepare`.
template <typename Prepare, typename Work>
double best_seconds(Prepare prepare, Work work) {
  double best = 1e300;
  for (int i = 0; i < num_trials; ++i) {
    prepare();
    const double start = processor_seconds();
    work();
    best = std::min(best, processor_seconds() - start);
  }
  return best;
}

// Reads the file and unescapes the text of each line. Returns the bytes of the texts.
size_t parse_alone(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  std::string content(std::filesystem::file_size(path), '\0');
  stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  const size_t size = content.size();
  content.append(simdjson::SIMDJSON_PADDING, '\0');
  simdjson::ondemand::parser parser;
  size_t bytes = 0;
  for (size_t at = 0; at < size;) {
    const size_t end = std::min(content.find('\n', at), size);
    auto document = parser.iterate(content.data() + at, end - at, content.size() - at);
    const std::string_view text = document["text"];
    bytes += text.size();
    at = end + 1;
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: bench_jsonl FILE.jsonl FOLDER\n", stderr);
    return 2;
  }
  const double megabytes = static_cast<double>(std::filesystem::file_size(argv[1])) / 1e6;
  size_t bytes = 0;
  const double alone = best_seconds([] {}, [&] { bytes = parse_alone(argv[1]); });
  gptrain::PackOptions options;
  options.inputs = {argv[1]};
  options.out_prefix = std::filesystem::path(argv[2]) / "bench-jsonl";
  options.tokenizer = std::make_shared<gptrain::Tokenizer>();
  gptrain::PackResult packed;
  const auto remove_files = [&] {
    for (const char* suffix : {".bin", ".idx", ".meta.json"})
      std::filesystem::remove(options.out_prefix.native() + suffix);
  };
  const double packing = best_seconds(remove_files, [&] { packed = gptrain::pack(options, nullptr); });
  remove_files();
  if (static_cast<size_t>(packed.tokens - packed.documents) != bytes) {
    std::fputs("bench_jsonl: both did not read the same texts\n", stderr);
    return 1;
  }
  std::printf("%.0f MB: simdjson alone %.0f MB/s, data pack %.0f MB/s, %.2f of it\n", megabytes, megabytes / alone,
              megabytes / packing, alone / packing);
  return 0;
}
