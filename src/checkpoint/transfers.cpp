#include "checkpoint/transfers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/units.h"

namespace gptrain::inline checkpoint {
namespace {

bool holds_weights_alone(const Contents& contents) {
  return std::all_of(contents.tensors.begin(), contents.tensors.end(),
                     [](const auto& tensor) { return tensor.first.starts_with(weight_prefix); });
}

// Returns the slices by tensor, after checking that the checkpoint can fill each one.
std::map<std::string, std::vector<const Slice*>> match_slices(const Contents& contents,
                                                              const std::vector<Slice>& slices) {
  std::map<std::string, std::vector<const Slice*>> wanted;
  for (const Slice& slice : slices) {
    const auto tensor = contents.tensors.find(slice.name);
    if (tensor == contents.tensors.end()) {
      if (holds_weights_alone(contents) && !slice.name.starts_with(weight_prefix)) {
        throw Error(ExitCode::checkpoint, "{} holds only weights: start a run from them with train --init-from",
                    contents.checkpoint.string());
      }
      throw Error(ExitCode::checkpoint, "{} holds no tensor \"{}\": it was saved by another model",
                  contents.checkpoint.string(), slice.name);
    }
    const Slice& stored = tensor->second.front();
    if (stored.global_shape != slice.global_shape) {
      throw Error(ExitCode::checkpoint, "tensor \"{}\" has shape {} in {}, but {} in this model", slice.name,
                  format_shape(stored.global_shape), contents.checkpoint.string(), format_shape(slice.global_shape));
    }
    if (stored.dtype != slice.dtype && slice.dtype != DType::f32 && !slice.rounds) {
      throw Error(ExitCode::checkpoint, "tensor \"{}\" is {} in {}, but {} in this run, which would round it",
                  slice.name, dtype_name(stored.dtype), contents.checkpoint.string(), dtype_name(slice.dtype));
    }
    if (!is_inside(slice.box, slice.global_shape)) {
      throw Error(ExitCode::checkpoint, "a slice asked of tensor \"{}\" does not lie in its shape {}", slice.name,
                  format_shape(slice.global_shape));
    }
    const int64_t elements = slice.box.count();
    const int64_t covered = covered_elements(tensor->second, slice.box);
    if (covered != elements) {
      throw Error(ExitCode::checkpoint, "{} holds only {} of the {} elements asked of tensor \"{}\"",
                  contents.checkpoint.string(), covered, elements, slice.name);
    }
    wanted[slice.name].push_back(&slice);
  }
  return wanted;
}

// Sorts by file and by offset in the file.
void sort_by_offset(std::vector<SliceTransfer>& transfers) {
  const auto file_and_offset = [](const SliceTransfer& t) { return std::pair(t.stored->file, t.stored->file_offset); };
  std::sort(transfers.begin(), transfers.end(),
            [&](const auto& a, const auto& b) { return file_and_offset(a) < file_and_offset(b); });
}

}  // namespace

std::vector<SliceTransfer> slice_transfers(const Contents& contents, const std::vector<Slice>& slices) {
  std::vector<SliceTransfer> transfers;
  for (const auto& [name, targets] : match_slices(contents, slices)) {
    for (const Slice& stored : contents.tensors.at(name)) {
      SliceTransfer transfer{&stored, {}};
      for (const Slice* target : targets) {
        BoxCopy copy(stored.box, target->box, target->dtype, target->data, target->memory);
        if (copy.pending()) transfer.copies.push_back(std::move(copy));
      }
      if (!transfer.copies.empty()) transfers.push_back(std::move(transfer));
    }
  }
  sort_by_offset(transfers);
  return transfers;
}

void SliceTransfer::feed(const std::byte* data, int64_t offset, int64_t bytes) {
  const DType dtype = stored->dtype;
  const int64_t first = offset / dtype_bytes(dtype);
  const int64_t count = bytes / dtype_bytes(dtype);
  num_not_finite += count_not_finite(data, count, dtype);
  std::vector<float> wide;
  std::vector<bf16> narrow;
  const auto is_same = [&](const BoxCopy& copy) { return copy.dtype() == dtype; };
  const bool are_all_same = std::all_of(copies.begin(), copies.end(), is_same);
  if (!are_all_same && dtype == DType::bf16) {
    const auto* const from = reinterpret_cast<const bf16*>(data);
    wide.resize(count);
    std::transform(from, from + count, wide.begin(), [](bf16 value) { return to_float(value); });
  } else if (!are_all_same && dtype == DType::u8) {
    const auto* const from = reinterpret_cast<const uint8_t*>(data);
    wide.assign(from, from + count);
  } else if (!are_all_same) {
    const auto* const from = reinterpret_cast<const float*>(data);
    narrow.resize(count);
    std::transform(from, from + count, narrow.begin(), to_bf16);
  }
  const void* const converted = wide.empty() ? static_cast<const void*>(narrow.data()) : wide.data();
  for (BoxCopy& copy : copies) copy.feed(first, is_same(copy) ? data : converted, count);
}

void require_finite(const Contents& contents, const SliceTransfer& transfer) {
  if (transfer.num_not_finite == 0) return;
  throw Error(ExitCode::diverged,
              "{} holds a state that has diverged: {} of tensor \"{}\" are not finite (`gptrain checkpoint verify "
              "--deep` lists all)",
              contents.checkpoint.string(), format_counted(transfer.num_not_finite, "number"),
              printable(transfer.stored->name));
}

void run_transfers(const Contents& contents, std::vector<SliceTransfer> transfers, NotFinite not_finite) {
  sort_by_offset(transfers);
  std::optional<InputFile> file;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Slice& stored = *transfers[i].stored;
    if (i == 0 || stored.file != transfers[i - 1].stored->file) {
      file.emplace(contents.checkpoint / contents.stored.files[stored.file].name);
    }
    read_slice(*file, stored,
               [&](const std::byte* data, int64_t offset, int64_t bytes) { transfers[i].feed(data, offset, bytes); });
    if (not_finite == NotFinite::refused) require_finite(contents, transfers[i]);
  }
}

}  // namespace gptrain::checkpoint
