// Readers of untrusted input on arbitrary bytes: each accepts them, or throws an Error. One program for all of them,
// selected as in fuzz.h; built for libFuzzer it has no main of its own.
#include "fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sys/socket.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/files.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/hf_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "comm/frames.h"
#include "comm/socket.h"
#include "config/load.h"
#include "data/ingest/block_texts.h"
#include "data/ingest/blocks.h"
#include "data/token_file.h"
#include "data/token_meta.h"
#include "data/tokenizer/files.h"
#include "data/tokenizer/unicode.h"
#include "report/run_page.h"
#include "train/metrics.h"

namespace fuzz {
namespace {

namespace fs = std::filesystem;
using namespace gptrain;

// Returns a folder for this process, in memory if there is such a disk.
const fs::path& scratch() {
  static const fs::path folder = [] {
    const fs::path memory = "/dev/shm";
    std::string name =
        ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "gptrain-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    std::atexit([] { fs::remove_all(scratch()); });
    return fs::path(name);
  }();
  return folder;
}

void write(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void read_config(std::string_view bytes) {
  const RunConfig config = parse_config(bytes, {}, "fuzz");
  // An accepted config is printed as a config that is accepted and equal.
  const std::string shown = show_config(config);
  if (show_config(parse_config(shown, {}, "shown")) != shown) std::abort();
}

// Adds the checksum, without which nothing else would be read.
void read_manifest_file(std::string_view bytes) {
  write(scratch() / "manifest.json",
        fmt::format("{},\n  \"crc32c\": \"{:08x}\"\n}}\n", bytes, crc32c(bytes.data(), bytes.size())));
  load_manifest(scratch());
}

void read_header(std::string_view bytes) {
  write(scratch() / "header", bytes);
  const InputFile file(scratch() / "header");
  for (const SafetensorsTensor& tensor : read_safetensors_header(file).tensors) {
    stream_tensor(file, tensor.offset, tensor.bytes, [](const std::byte*, int64_t, int64_t) {});
  }
}

// Reads a model's config.json of the transformers library into the keys of a config.
void read_hf_config_file(std::string_view bytes) {
  write(scratch() / "config.json", bytes);
  const HfDescription description = read_hf_config(scratch() / "config.json");
  Json config = {{"model", description.model},
                 {"data", {{"train", Json::array({{{"path", "x"}}})}}},
                 {"batch", {{"global", 1}}},
                 {"optimizer", {{"lr", 1e-4}}},
                 {"run", {{"steps", 1}, {"out", "x"}}}};
  parse_config(json_text(config), {}, "fuzz");
}

// The bytes are the index of a folder of two fixed files.
void read_hf_index(std::string_view bytes) {
  const fs::path folder = scratch() / "sharded";
  if (fs::create_directories(folder)) {
    for (const char* name : {"a", "b"}) {
      const std::string header =
          fmt::format(R"({{"{}.weight":{{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}}})", name);
      std::string file(8, '\0');
      file[0] = static_cast<char>(header.size());
      write(folder / (std::string(name) + ".safetensors"), file + header + "\1\2\3\4");
    }
  }
  write(folder / "model.safetensors.index.json", bytes);
  const HfFiles files(folder);
  for (const auto& [name, location] : files.tensors()) {
    if (files.read(name).size() != 2 || files.file_of(name).parent_path() != folder) std::abort();
  }
}

// The bytes are an index; the tokens are fixed.
void read_index(std::string_view bytes) {
  write(scratch() / "x.bin", std::string(64, '\1'));
  write(scratch() / "x.idx", bytes);
  const TokenFile file(scratch() / "x");
  std::vector<int32_t> out(static_cast<size_t>(file.num_tokens()));
  file.read({0, file.num_tokens()}, 1 << 30, out.data());
  file.document_starts({0, file.num_tokens()}, out.data());
  for (int64_t i = 0; i < file.num_documents(); ++i) file.document(i);
}

void read_checksum_file(std::string_view bytes) {
  write(scratch() / "y.meta.json", bytes);
  read_token_meta(scratch() / "y");
}

void read_metrics(std::string_view bytes) {
  fs::remove_all(scratch() / "out");
  fs::create_directories(scratch() / "out");
  write(scratch() / "out/metrics.jsonl", bytes);
  { const MetricsWriter writer(scratch() / "out", 3); }
  read_run_history(scratch() / "out/metrics.jsonl");
}

void read_frames(std::string_view bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
  const Socket writer(ends[1]);
  FrameChannel channel{Socket(ends[0]), most_stranger_bytes};
  const std::string_view sent = bytes.substr(0, 60'000);
  if (::send(ends[1], sent.data(), sent.size(), MSG_NOSIGNAL) < 0) return;
  while (channel.open()) {
    channel.read_one_frame();
    const auto frame = channel.next_frame();
    if (!frame) break;
    if (frame->size() > most_stranger_bytes) std::abort();
    const auto json = parse_json_or_discard(*frame);
    for (const char* name : {"kind", "nonce", "proof", "rank"}) {
      text_member(json, name);
      number_member(json, name, 0, 10);
    }
  }
}

// Reads documents as JSONL, by name, and in the format that the content suggests, there with invalid UTF-8 replaced.
void read_documents(std::string_view bytes) {
  for (const bool by_content : {false, true}) {
    const fs::path path = scratch() / (by_content ? "in" : "in.jsonl");
    write(path, bytes);
    const std::vector<TextInput> inputs = {{path, static_cast<int64_t>(bytes.size()), 0}};
    try {
      BlockReader reader(inputs, ReadOptions(), [](std::string_view text) { return text.size(); });
      BlockTexts texts(by_content);
      while (const auto block = reader.next()) {
        texts.read(
            *block,
            [](std::string_view text, int64_t line) {
              if (find_invalid_utf8(text) < text.size() || line < 1) std::abort();
            },
            [](int64_t, const std::string& reason, bool) {
              if (reason.empty()) std::abort();
            });
      }
    } catch (const Error& error) {
      // Damaged compressed data, for example, which the other name may not have.
      if (*error.what() == '\0') std::abort();
    }
  }
}

// An accepted tokenizer is written as one that is accepted, and gives the same ids, which decode to the text.
void read_tokenizer_json(std::string_view bytes) {
  const auto tokenizer = parse_tokenizer_json(bytes, "fuzz");
  const auto again = parse_tokenizer_json(tokenizer_json(tokenizer->parts()), "again");
  constexpr std::string_view text = "The quick\n\n brown fox's 1234 \xC3\xBC";
  Encoder encoder(tokenizer);
  const std::span<const int32_t> ids = encoder.encode(text);
  Encoder second(again);
  const std::span<const int32_t> same = second.encode(text);
  if (!std::equal(ids.begin(), ids.end(), same.begin(), same.end())) std::abort();
  tokenizer->decode(ids);
  tokenizer->text_bytes();
}

void read_flat(std::string_view bytes) {
  write(scratch() / "flat.bin", bytes);
  const TokenFile file(scratch() / "flat.bin");
  std::vector<int32_t> out(static_cast<size_t>(file.num_tokens()));
  file.read({0, file.num_tokens()}, int64_t{1} << 31, out.data());
  file.document_starts({0, file.num_tokens()}, out.data());
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"config", read_config}, {"manifest", read_manifest_file},   {"header", read_header},
      {"idx", read_index},     {"meta", read_checksum_file},       {"metrics", read_metrics},
      {"frames", read_frames}, {"documents", read_documents},      {"tokenizer", read_tokenizer_json},
      {"flat", read_flat},     {"hf_config", read_hf_config_file}, {"hf_index", read_hf_index}};
  return all;
}

void run(const Target& target, std::string_view bytes) {
  try {
    target.read(bytes);
  } catch (const Error& error) {
    if (*error.what() == '\0') std::abort();
  }
}

}  // namespace fuzz

#ifdef GPTRAIN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Target target = [] {
    const char* const name = std::getenv("GPTRAIN_FUZZ");
    for (const fuzz::Target& candidate : fuzz::targets())
      if (name != nullptr && candidate.name == std::string_view(name)) return candidate;
    std::abort();
  }();
  fuzz::run(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
#endif
