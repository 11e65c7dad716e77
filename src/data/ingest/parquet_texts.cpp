#include "data/ingest/parquet_texts.h"

#include <algorithm>
#include <array>
#include <new>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "data/ingest/row_texts.h"

namespace gptrain {
namespace {

constexpr int64_t batch_rows = 1024;

// What Arrow's library throws is an error of the file.
template <typename Work>
auto reading(const std::filesystem::path& path, Work work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& fault) {
    throw Error(ExitCode::data, "{}: the Parquet data cannot be read: {}", path.native(), fault.what());
  }
}

}  // namespace

struct ParquetTexts::Impl {
  Impl(std::filesystem::path path_, const std::string& name, int64_t first_row) : path(std::move(path_)) {
    reading(path, [&] {
      parquet::ReaderProperties properties;
      properties.enable_buffered_stream();  // else a column's part of a row group is read whole
      file = parquet::ParquetFileReader::OpenFile(path.native(), false, properties);
      column = find_column(name);
      skip(first_row);
    });
  }

  int find_column(const std::string& name) const {
    const parquet::SchemaDescriptor& schema = *file->metadata()->schema();
    const int index = schema.ColumnIndex(name);
    if (index < 0) {
      std::string names;
      for (int i = 0; i < schema.num_columns(); ++i)
        names += (i > 0 ? ", " : "") + schema.Column(i)->path()->ToDotString();
      throw Error(ExitCode::data, "{} has no column \"{}\" (--field names it); its columns are {}", path.native(), name,
                  names);
    }
    const parquet::ColumnDescriptor& found = *schema.Column(index);
    if (found.physical_type() != parquet::Type::BYTE_ARRAY || found.max_repetition_level() > 0) {
      throw Error(ExitCode::data, "{}: column \"{}\" is {} {}, must be one of strings", path.native(), name,
                  found.max_repetition_level() > 0 ? "a list of" : "of type",
                  parquet::TypeToString(found.physical_type()));
    }
    return index;
  }

  void skip(int64_t rows) {
    const parquet::FileMetaData& metadata = *file->metadata();
    if (rows > metadata.num_rows()) throw Error(ExitCode::data, "{} is shorter than it was", path.native());
    while (rows > 0) {
      const int64_t in_group = metadata.RowGroup(group)->num_rows();
      if (rows >= in_group) {
        ++group;
      } else {
        open_group();
        reader->Skip(rows);
      }
      rows -= std::min(rows, in_group);
    }
  }

  void open_group() {
    group_reader = file->RowGroup(group++);
    reader = std::static_pointer_cast<parquet::ByteArrayReader>(group_reader->Column(column));
  }

  int64_t read(std::string& bytes, size_t wanted_bytes) {
    int64_t rows = 0;
    while (bytes.size() < wanted_bytes) {
      if (!reader || !reader->HasNext()) {
        if (group == file->metadata()->num_row_groups()) break;
        open_group();
        continue;
      }
      int64_t num_values = 0;
      // A batch is part of a page, in which the values lie.
      const int64_t count = reader->ReadBatch(batch_rows, levels.data(), nullptr, values.data(), &num_values);
      const int16_t present = reader->descr()->max_definition_level();
      size_t value = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (present > 0 && levels[static_cast<size_t>(i)] < present) {
          append_row_text(bytes, nullptr, null_row_text);
          continue;
        }
        const parquet::ByteArray& text = values[value++];
        append_row_text(bytes, text.ptr, text.len);
      }
      rows += count;
    }
    return rows;
  }

  std::filesystem::path path;
  std::unique_ptr<parquet::ParquetFileReader> file;
  int column = 0;
  int group = 0;  // that is opened next
  std::shared_ptr<parquet::RowGroupReader> group_reader;
  std::shared_ptr<parquet::ByteArrayReader> reader;
  std::array<int16_t, batch_rows> levels{};
  std::array<parquet::ByteArray, batch_rows> values{};
};

ParquetTexts::ParquetTexts(std::filesystem::path path, const std::string& column, int64_t first_row)
    : impl_(std::make_unique<Impl>(std::move(path), column, first_row)) {}

ParquetTexts::~ParquetTexts() = default;

int64_t ParquetTexts::read(std::string& bytes, size_t wanted_bytes) {
  return reading(impl_->path, [&] { return impl_->read(bytes, wanted_bytes); });
}

int64_t ParquetTexts::num_rows() const { return impl_->file->metadata()->num_rows(); }

}  // namespace gptrain
