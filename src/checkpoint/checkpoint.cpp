#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "base/directory.h"
#include "base/json.h"
#include "base/sha256.h"
#include "checkpoint/files.h"
#include "checkpoint/folder.h"
#include "checkpoint/transfers.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

// Names a checkpoint to use in place of one that cannot be used: the newest older one of its run whose manifest and
// file sizes are sound, or, for the folder of a run, its newest one.
std::string other_checkpoint_hint(const fs::path& checkpoint) {
  const fs::path folder = plain_path(checkpoint);
  const auto step = step_of_folder_name(folder.filename().string());
  const bool in_run = folder.parent_path().filename() == checkpoints_folder({});
  if (step && !in_run) return "";
  const bool holds_steps = folder.filename() == checkpoints_folder({});
  const fs::path run = step ? folder.parent_path().parent_path() : holds_steps ? folder.parent_path() : folder;
  const auto listed = list_checkpoints(run);
  for (auto other = listed.rbegin(); other != listed.rend(); ++other) {
    if (step && other->step >= *step) continue;
    try {
      const std::optional<double> loss = read_manifest_and_sizes(other->path).manifest.progress.loss;
      if (loss && !std::isfinite(*loss)) continue;
    } catch (const Error&) {
      continue;
    }
    return fmt::format("; the {}: {}", step ? "checkpoint before it" : "newest checkpoint in it", other->path.string());
  }
  return step ? "; there is no older checkpoint in this run" : "";
}

// Runs `read`, and adds the hint to its errors.
template <typename Read>
auto with_hint(const fs::path& checkpoint, Read read) {
  try {
    return read();
  } catch (const Error& e) {
    throw with_way_out(e, checkpoint);
  }
}

// Removes the files of a folder whose names start with one of `beginnings`, left by an earlier try.
void remove_files(const fs::path& folder, const std::vector<std::string>& beginnings) {
  std::error_code ignored;
  for (const fs::path& path : paths_in(folder, ignored)) {
    const std::string name = path.filename().string();
    const auto begins = [&](const std::string& beginning) { return name.starts_with(beginning); };
    if (std::any_of(beginnings.begin(), beginnings.end(), begins)) fs::remove(path, ignored);
  }
}

fs::path temporary_folder(const fs::path& out, int64_t step) {
  return checkpoints_folder(out) / temporary_folder_name(step);
}

// Returns the manifest's tokenizer with its text, if the checkpoint has it.
std::optional<TokenizerRecord> with_text(const Manifest& manifest, const fs::path& checkpoint) {
  std::optional<TokenizerRecord> record = manifest.tokenizer;
  if (!manifest.has_tokenizer_file) return record;
  const InputFile file(checkpoint / tokenizer_name);
  if (file.bytes() > max_tensor_header_bytes)
    throw Error(ExitCode::checkpoint, "{} cannot be used: it is larger than any tokenizer", file.path().string());
  record->text.resize(file.bytes());
  file.read(0, record->text.data(), file.bytes());
  if (sha256_hex(record->text) != record->sha256)
    throw Error(ExitCode::checkpoint, "{} is damaged: it does not have the manifest's hash", file.path().string());
  return record;
}

}  // namespace

Error with_way_out(const Error& error, const fs::path& checkpoint) {
  return {error.code(), "{}{}", error.lines(), other_checkpoint_hint(checkpoint)};
}

void save_checkpoint(const fs::path& out, const Manifest& manifest, const std::vector<Slice>& slices) {
  std::set<std::string> tensors;
  for (const Slice& slice : slices) tensors.insert(slice.name);
  begin_checkpoint(out, manifest.progress.step);
  try {
    publish_checkpoint(out, manifest, static_cast<int64_t>(tensors.size()),
                       {write_checkpoint_part(out, manifest.progress.step, 0, slices)});
  } catch (...) {
    discard_checkpoint(out, manifest.progress.step);
    throw;
  }
}

void begin_checkpoint(const fs::path& out, int64_t step) {
  const fs::path temporary = temporary_folder(out, step);
  with_more_tries([&] { create_folders(temporary.parent_path()); });
  require_removed(temporary);
  try {
    with_more_tries([&] { create_folders(temporary); });
  } catch (...) {
    remove_folder(temporary);
    throw;
  }
}

std::string write_checkpoint_part(const fs::path& out, int64_t step, int64_t rank, const std::vector<Slice>& slices) {
  const fs::path temporary = temporary_folder(out, step);
  const std::string name = fmt::format("rank-{:05}", rank);
  std::string records;
  with_more_tries([&] {
    remove_files(temporary, {name + ".", name + "-"});
    records = format_file_records(write_rank_files(temporary, rank, slices));
  });
  return records;
}

void publish_checkpoint(const fs::path& out, const Manifest& manifest, int64_t num_tensors,
                        const std::vector<std::string>& parts) {
  const fs::path temporary = temporary_folder(out, manifest.progress.step);
  StoredManifest stored{manifest, num_tensors, {}};
  for (const std::string& part : parts) {
    for (FileRecord& record : parse_file_records(part)) stored.files.push_back(std::move(record));
  }
  with_more_tries([&] {
    remove_files(temporary, {std::string(tokenizer_name), std::string(manifest_name)});
    if (manifest.tokenizer && !manifest.tokenizer->text.empty() && !manifest.tokenizer->is_bytes()) {
      const std::string& text = manifest.tokenizer->text;
      SyncedFile file(temporary / tokenizer_name);
      file.write(text.data(), static_cast<int64_t>(text.size()));
      file.sync_and_close();
    }
    // The name of every file is durable before the manifest says that they are there.
    sync_folder(temporary);
    write_manifest(temporary, stored);
    sync_folder(temporary);
  });
  publish_folder(temporary, checkpoints_folder(out) / step_folder_name(manifest.progress.step));
}

void discard_checkpoint(const fs::path& out, int64_t step) { remove_folder(temporary_folder(out, step)); }

std::vector<CheckpointInfo> list_checkpoints(const fs::path& out) {
  const fs::path folder = checkpoints_folder(out);
  std::vector<CheckpointInfo> found;
  std::error_code error;
  for (const fs::path& path : paths_in(folder, error)) {
    if (const auto step = step_of_folder_name(path.filename().string())) found.push_back({path, *step});
  }
  // A dangling link, e.g. to a disk that is not mounted, is an error and not an empty list.
  std::error_code unknown;
  const bool is_lost_link = error && fs::is_symlink(folder, unknown);
  if (error && (error != std::errc::no_such_file_or_directory || is_lost_link)) {
    throw Error(ExitCode::checkpoint, "cannot read {}: {}", folder.string(), error.message());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

Manifest read_manifest(const fs::path& checkpoint) {
  return with_hint(checkpoint, [&] { return read_manifest_and_sizes(checkpoint).manifest; });
}

Contents verify_structure(const fs::path& checkpoint) {
  return with_hint(checkpoint, [&] {
    Contents contents = read_contents(checkpoint);
    for (const auto& [name, slices] : contents.tensors) {
      const Box whole = whole_box(slices.front().global_shape);
      const int64_t elements = whole.count();
      if (const int64_t covered = covered_elements(slices, whole); covered != elements) {
        throw Error(ExitCode::checkpoint, "{} holds only {} of the {} elements of tensor \"{}\"", checkpoint.string(),
                    covered, elements, name);
      }
    }
    with_text(contents.stored.manifest, checkpoint);
    return contents;
  });
}

void verify_checkpoint(const fs::path& checkpoint) {
  const Contents contents = verify_structure(checkpoint);
  with_hint(checkpoint, [&] {
    std::vector<SliceTransfer> transfers;
    for (const auto& [name, slices] : contents.tensors) {
      for (const Slice& stored : slices) transfers.push_back({&stored, {}});
    }
    run_transfers(contents, std::move(transfers));
  });
}

std::optional<TokenizerRecord> read_tokenizer(const fs::path& checkpoint) {
  return with_hint(checkpoint, [&] { return with_text(load_manifest(checkpoint).manifest, checkpoint); });
}

void load_slices(const Contents& contents, const std::vector<Slice>& slices, NotFinite not_finite) {
  std::vector<SliceTransfer> transfers = slice_transfers(contents, slices);
  with_hint(contents.checkpoint, [&] { run_transfers(contents, std::move(transfers), not_finite); });
}

void load_slices(const fs::path& checkpoint, const std::vector<Slice>& slices) {
  load_slices(with_hint(checkpoint, [&] { return read_contents(checkpoint); }), slices);
}

std::vector<float> load_tensor(const Contents& contents, const std::string& name, NotFinite not_finite) {
  const auto tensor = contents.tensors.find(name);
  if (tensor == contents.tensors.end()) {
    throw Error(ExitCode::checkpoint, "{} holds no tensor \"{}\", which its own config asks for",
                contents.checkpoint.string(), name);
  }
  const std::vector<int64_t>& shape = tensor->second.front().global_shape;
  std::vector<float> values(*num_elements(shape));
  load_slices(contents, {{.name = name, .global_shape = shape, .box = whole_box(shape), .data = values.data()}},
              not_finite);
  return values;
}

}  // namespace gptrain::checkpoint
