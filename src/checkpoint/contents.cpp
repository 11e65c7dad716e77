#include "checkpoint/contents.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/units.h"
#include "checkpoint/folder.h"

namespace gptrain::inline checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

// Returns the text under a slice's key in the file's metadata: its tensor, and its offset there.
std::string format_origin(const Slice& slice) {
  return json_text(json{{"tensor", slice.name}, {"global_shape", slice.global_shape}, {"offset", slice.box.offset}});
}

// Returns none if it is no list of whole numbers. The JSON library would truncate fractions.
std::optional<std::vector<int64_t>> sizes_of(const json& list) {
  if (!list.is_array()) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const json& size : list) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

// Returns a slice's name, global shape and offset; none if the text was not made by format_origin.
std::optional<Slice> parse_origin(const std::string& text) {
  try {
    const json origin = parse_json(text);
    auto shape = sizes_of(origin.at("global_shape")), offset = sizes_of(origin.at("offset"));
    if (!shape || !offset) return std::nullopt;
    return Slice{.name = origin.at("tensor").get<std::string>(),
                 .global_shape = std::move(*shape),
                 .box = {.offset = std::move(*offset), .shape = {}}};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string slice_key(const Slice& slice) {
  if (slice.box.shape == slice.global_shape) return slice.name;
  return fmt::format("{}@{}", slice.name, join_numbers(slice.box.offset, ","));
}

void check_slices(const std::vector<Slice>& slices) {
  std::map<std::string, std::vector<const Slice*>> tensors;
  for (const Slice& slice : slices) {
    if (!is_inside(slice.box, slice.global_shape) || !num_elements(slice.global_shape)) {
      throw Error(ExitCode::checkpoint, "slice {} at {} does not lie in tensor \"{}\" of shape {}",
                  format_shape(slice.box.shape), format_shape(slice.box.offset), slice.name,
                  format_shape(slice.global_shape));
    }
    tensors[slice.name].push_back(&slice);
  }
  for (const auto& [name, parts] : tensors) {
    std::vector<Box> boxes;
    for (const Slice* part : parts) {
      if (part->global_shape != parts.front()->global_shape) {
        throw Error(ExitCode::checkpoint, "slices of tensor \"{}\" give it two shapes, {} and {}", name,
                    format_shape(parts.front()->global_shape), format_shape(part->global_shape));
      }
      boxes.push_back(part->box);
    }
    if (find_overlap(boxes)) throw Error(ExitCode::checkpoint, "slices of tensor \"{}\" overlap", name);
  }
}

std::string damage_text(const fs::path& file, const std::string& what) {
  return fmt::format("{} is damaged: {}", file.string(), what);
}

void check_size(const InputFile& file, const FileRecord& record) {
  if (file.bytes() != record.bytes) {
    throw Error(ExitCode::checkpoint, damage_text(file.path(), fmt::format("it has {} bytes, the manifest says {}",
                                                                           file.bytes(), record.bytes)));
  }
}

// Adds one file's slices to the tensors they belong to.
void add_file(Contents& contents, size_t index, std::string_view header_bytes) {
  const FileRecord& record = contents.stored.files[index];
  const fs::path path = contents.checkpoint / record.name;
  const SafetensorsHeader header = parse_safetensors_header(header_bytes, path, record.bytes);
  const auto fault = [&](const std::string& what) -> Error {
    constexpr size_t max_bytes = 400;
    return Error(ExitCode::checkpoint, damage_text(path, printable(what, max_bytes)));
  };
  if (header.crc32c != record.header_crc32c) throw fault("its header does not have the checksum in the manifest");
  if (header.tensors.size() != record.slices_crc32c.size()) {
    throw fault(
        fmt::format("it holds {} slices, the manifest lists {}", header.tensors.size(), record.slices_crc32c.size()));
  }
  for (const SafetensorsTensor& stored : header.tensors) {
    const std::string& key = stored.name;
    const auto crc = record.slices_crc32c.find(key);
    if (crc == record.slices_crc32c.end()) throw fault(fmt::format("the manifest does not list slice \"{}\"", key));
    const auto text = header.metadata.find(key);
    auto slice = text == header.metadata.end() ? std::nullopt : parse_origin(text->second);
    const DType dtype = stored.dtype;
    if (slice) slice->box.shape = stored.shape;
    if (!slice || (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::u8) ||
        !num_elements(slice->global_shape) || !is_inside(slice->box, slice->global_shape)) {
      throw fault(fmt::format("slice \"{}\" is not an F32, BF16 or U8 box of a global tensor", key));
    }
    // Other programs know a slice by its key alone.
    if (key != slice_key(*slice)) throw fault(fmt::format("slice \"{}\" covers the elements of another one", key));
    slice->dtype = dtype;
    slice->file = index;
    slice->file_offset = stored.offset;
    slice->crc32c = crc->second;
    std::vector<Slice>& slices = contents.tensors[slice->name];
    const Slice& first = slices.empty() ? *slice : slices.front();
    if (first.dtype != dtype) {
      throw fault(fmt::format("slice \"{}\" is of a tensor of {}, another slice of it of {}", key, dtype_name(dtype),
                              dtype_name(first.dtype)));
    }
    if (first.global_shape != slice->global_shape) {
      throw fault(fmt::format("slice \"{}\" is of a tensor of shape {}, another slice of it of shape {}", key,
                              format_shape(slice->global_shape), format_shape(first.global_shape)));
    }
    slices.push_back(std::move(*slice));
  }
}

// Adds the slice; cuts one larger than `most_bytes` into pieces that are contiguous in its memory.
void cut_slice(const Slice& slice, int64_t most_bytes, std::vector<Slice>& pieces) {
  const std::vector<int64_t>& shape = slice.box.shape;
  const auto dim =
      static_cast<size_t>(std::find_if(shape.begin(), shape.end(), [](int64_t n) { return n > 1; }) - shape.begin());
  if (slice.bytes() <= most_bytes || dim == shape.size()) return pieces.push_back(slice);
  const int64_t rows = shape[dim];
  const int64_t row_bytes = slice.bytes() / rows;
  const int64_t of_piece = std::max<int64_t>(most_bytes / row_bytes, 1);
  for (int64_t row = 0; row < rows; row += of_piece) {
    Slice piece = slice;
    piece.box.offset[dim] += row;
    piece.box.shape[dim] = std::min(of_piece, rows - row);
    // Adds as integers, because a SliceMemory's addresses may start at 0.
    piece.data =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slice.data) + static_cast<uintptr_t>(row * row_bytes));
    cut_slice(piece, most_bytes, pieces);
  }
}

// Returns the data's checksum.
uint32_t write_slice(const Slice& slice, SafetensorsWriter& writer, NotFinite not_finite) {
  int64_t lost = 0;
  uint32_t crc = 0;
  // Pieces stay in a cache from the look at their numbers to the checksum.
  constexpr int64_t piece_bytes = int64_t{1} << 18;
  const auto write = [&](const std::byte* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += piece_bytes) {
      const int64_t count = std::min(piece_bytes, bytes - at);
      if (not_finite == NotFinite::refused)
        lost += count_not_finite(from + at, count / dtype_bytes(slice.dtype), slice.dtype);
      crc = writer.write(from + at, count, crc);
    }
  };
  const auto* const data = static_cast<const std::byte*>(slice.data);
  if (slice.memory == nullptr) {
    write(data, slice.bytes());
  } else {
    slice.memory->read(data, slice.bytes(), write);
  }
  if (lost > 0)
    throw Error(ExitCode::diverged, "{} of tensor \"{}\" are not finite", format_counted(lost, "number"),
                printable(slice.name));
  return crc;
}

// The parts of a file's header that name its slices.
struct SliceNames {
  explicit SliceNames(std::span<const Slice> slices) {
    for (const Slice& slice : slices) {
      tensors.push_back({slice_key(slice), slice.dtype, slice.box.shape});
      try {
        metadata[slice_key(slice)] = format_origin(slice);
      } catch (const json::exception&) {
        throw Error(ExitCode::checkpoint, "a tensor's name is not valid UTF-8");
      }
    }
  }

  std::vector<SafetensorsTensor> tensors;
  SafetensorsMetadata metadata;
};

FileRecord write_file(const fs::path& folder, const std::string& name, std::span<const Slice> slices,
                      NotFinite not_finite) {
  FileRecord record;
  record.name = name;
  const SliceNames names(slices);
  SafetensorsWriter writer(folder / name, names.tensors, names.metadata);
  for (const Slice& slice : slices) record.slices_crc32c[slice_key(slice)] = write_slice(slice, writer, not_finite);
  writer.finish();
  record.bytes = writer.file_bytes();
  record.header_crc32c = writer.header_crc32c();
  return record;
}

// Calls make(name, slices) for each file of a rank, and returns the results.
template <typename Make>
std::vector<FileRecord> for_each_rank_file(int64_t rank, const std::vector<Slice>& given, int64_t part_bytes,
                                           Make make) {
  std::vector<Slice> slices;
  for (const Slice& slice : given) cut_slice(slice, part_bytes, slices);
  // Large elements first: other readers want each tensor at a multiple of its elements' size.
  std::stable_sort(slices.begin(), slices.end(),
                   [](const Slice& a, const Slice& b) { return dtype_bytes(a.dtype) > dtype_bytes(b.dtype); });
  std::vector<size_t> ends;  // one past the last slice of each part
  int64_t bytes = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const int64_t more = slices[i].bytes();
    if (bytes > 0 && more > part_bytes - bytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  ends.push_back(slices.size());
  std::vector<FileRecord> records;
  size_t begin = 0;
  for (size_t part = 0; part < ends.size(); ++part) {
    const std::string name = ends.size() == 1 ? rank_file_name(rank) : rank_part_name(rank, static_cast<int64_t>(part));
    records.push_back(make(name, std::span<const Slice>(slices.data() + begin, ends[part] - begin)));
    begin = ends[part];
  }
  return records;
}

}  // namespace

std::vector<FileRecord> write_rank_files(const fs::path& folder, int64_t rank, const std::vector<Slice>& slices,
                                         int64_t part_bytes, NotFinite not_finite) {
  check_slices(slices);
  return for_each_rank_file(rank, slices, part_bytes, [&](const std::string& name, std::span<const Slice> of_file) {
    return write_file(folder, name, of_file, not_finite);
  });
}

std::vector<FileRecord> plan_rank_files(int64_t rank, const std::vector<Slice>& slices, int64_t part_bytes) {
  return for_each_rank_file(rank, slices, part_bytes, [](const std::string& name, std::span<const Slice> of_file) {
    const SliceNames names(of_file);
    FileRecord record;
    record.name = name;
    record.bytes = safetensors_file_bytes(names.tensors, names.metadata);
    for (const Slice& slice : of_file) record.slices_crc32c[slice_key(slice)] = 0;
    return record;
  });
}

StoredManifest read_named_manifest(const fs::path& checkpoint) {
  StoredManifest stored = load_manifest(checkpoint);
  const fs::path name = plain_path(checkpoint).filename();
  const auto step = step_of_folder_name(name.string());
  if (step && *step != stored.manifest.progress.step) {
    throw Error(ExitCode::checkpoint, "{} is of step {}, but its folder is named {}",
                (checkpoint / manifest_name).string(), stored.manifest.progress.step, name.string());
  }
  return stored;
}

StoredManifest read_manifest_and_sizes(const fs::path& checkpoint) {
  StoredManifest stored = read_named_manifest(checkpoint);
  for (const FileRecord& record : stored.files) check_size(InputFile(checkpoint / record.name), record);
  return stored;
}

std::string read_headers(const fs::path& checkpoint, const StoredManifest& stored, int rank, int ranks) {
  std::string headers;
  for (auto i = static_cast<size_t>(rank); i < stored.files.size(); i += static_cast<size_t>(ranks)) {
    const InputFile file(checkpoint / stored.files[i].name);
    check_size(file, stored.files[i]);
    headers += read_safetensors_header_bytes(file);
  }
  return headers;
}

Contents read_contents(const fs::path& checkpoint) {
  StoredManifest stored = read_named_manifest(checkpoint);
  const std::string headers = read_headers(checkpoint, stored, 0, 1);
  return contents_of(checkpoint, std::move(stored), {headers});
}

Contents contents_of(const fs::path& checkpoint, StoredManifest stored, const std::vector<std::string>& headers) {
  Contents contents;
  contents.checkpoint = checkpoint;
  contents.stored = std::move(stored);
  std::vector<std::string_view> left(headers.begin(), headers.end());
  for (size_t i = 0; i < contents.stored.files.size(); ++i) {
    std::string_view& of_rank = left[i % left.size()];
    const size_t bytes = safetensors_header_bytes(of_rank);
    if (bytes == 0) throw Error(ExitCode::checkpoint, "{} was changed while it was read", checkpoint.string());
    add_file(contents, i, of_rank.substr(0, bytes));
    of_rank.remove_prefix(bytes);
  }
  for (const auto& [name, slices] : contents.tensors) {
    std::vector<Box> boxes;
    for (const Slice& slice : slices) boxes.push_back(slice.box);
    if (const auto pair = find_overlap(boxes)) {
      const Slice& second = slices[pair->second];
      throw Error(ExitCode::checkpoint,
                  damage_text(checkpoint / contents.stored.files[second.file].name,
                              fmt::format("slice \"{}\" overlaps slice \"{}\"", printable(slice_key(second)),
                                          printable(slice_key(slices[pair->first])))));
    }
  }
  if (static_cast<int64_t>(contents.tensors.size()) != contents.stored.num_tensors) {
    throw Error(ExitCode::checkpoint, "the files of {} hold {} tensors, its manifest says {}", checkpoint.string(),
                contents.tensors.size(), contents.stored.num_tensors);
  }
  return contents;
}

void read_slice(const InputFile& file, const Slice& slice, const SafetensorsPiece& piece) {
  check_slice(file, slice, stream_tensor(file, slice.file_offset, slice.bytes(), piece));
}

void check_slice(const InputFile& file, const Slice& slice, uint32_t crc) {
  if (crc != slice.crc32c) {
    throw Error(
        ExitCode::checkpoint,
        damage_text(file.path(), fmt::format("the data of slice \"{}\" do not have the checksum in the manifest",
                                             printable(slice_key(slice)))));
  }
}

int64_t covered_elements(const std::vector<Slice>& slices, const Box& wanted) {
  int64_t covered = 0;
  for (const Slice& slice : slices) {
    const auto shared = intersect(slice.box, wanted);
    // The slices are disjoint, so their shares add up.
    if (shared) covered += shared->count();
  }
  return covered;
}

}  // namespace gptrain::checkpoint
