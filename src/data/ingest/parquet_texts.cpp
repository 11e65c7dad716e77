#include "data/ingest/parquet_texts.h"

#include <algorithm>
#include <array>
#include <arrow/memory_pool.h>
#include <fstream>
#include <new>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "data/ingest/row_texts.h"

namespace gptrain::inline data {
namespace {

constexpr int64_t batch_rows = 1024;

// Memory pool for a column's pages, with a limit per allocation. Page headers have no checksum: a damaged size could
// otherwise exhaust memory before the damage is noticed.
class BoundedPool final : public arrow::ProxyMemoryPool {
 public:
  BoundedPool() : arrow::ProxyMemoryPool(arrow::default_memory_pool()) {}

  // A decoded value takes 16 bytes and at least 4 bytes in the page, its length: hence the factor 4.
  void set_column_bytes(int64_t bytes) { most_bytes_ = usual_bytes + 4 * bytes; }

  using arrow::ProxyMemoryPool::Allocate;
  using arrow::ProxyMemoryPool::Reallocate;
  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override {
    if (size > most_bytes_) return refuse(size);
    return arrow::ProxyMemoryPool::Allocate(size, alignment, out);
  }
  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** ptr) override {
    if (new_size > most_bytes_) return refuse(new_size);
    return arrow::ProxyMemoryPool::Reallocate(old_size, new_size, alignment, ptr);
  }

 private:
  static constexpr int64_t usual_bytes = int64_t{1} << 26;

  static arrow::Status refuse(int64_t size) {
    return arrow::Status::Invalid("a page that says it has ", size, " bytes, more than its column");
  }

  int64_t most_bytes_ = usual_bytes;
};

// Turns Arrow's exceptions into Error(data) with the file's name.
template <typename Work>
auto reading(const std::filesystem::path& path, Work work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& fault) {
    throw Error(
        ExitCode::data,
        "{}: the Parquet data cannot be read: they are damaged, or use a feature that Arrow lacks; Arrow reports: {}",
        path.native(), fault.what());
  }
}

}  // namespace

struct ParquetTexts::Impl {
  Impl(std::filesystem::path path_, const std::string& name, int64_t first_row) : path(std::move(path_)) {
    reading(path, [&] {
      require_end();
      parquet::ReaderProperties properties(&pool);
      properties.enable_buffered_stream();  // without it, a row group's column is read at once
      properties.set_page_checksum_verification(true);
      file = parquet::ParquetFileReader::OpenFile(path.native(), false, properties);
      column = find_column(name);
      check_row_count();
      skip(first_row);
    });
  }

  // Arrow finds a file without its end as well, and names states of its reader.
  void require_end() const {
    constexpr std::string_view magic = "PAR1";
    std::ifstream stream(path, std::ios::binary);
    std::string end(magic.size(), '\0');
    stream.seekg(-static_cast<std::streamoff>(magic.size()), std::ios::end);
    if (stream.read(end.data(), static_cast<std::streamsize>(end.size())) && end != magic)
      throw Error(ExitCode::data, "{}: the Parquet data cannot be read: their end is missing; fetch the file again",
                  path.native());
  }

  int find_column(const std::string& name) const {
    const parquet::SchemaDescriptor& schema = *file->metadata()->schema();
    const int index = schema.ColumnIndex(name);
    if (index < 0) {
      std::string names;
      for (int i = 0; i < schema.num_columns(); ++i)
        names += (i > 0 ? ", " : "") + schema.Column(i)->path()->ToDotString();
      throw Error(ExitCode::data, "{} has no column \"{}\" (name another with --field); its columns are {}",
                  path.native(), name, names.empty() ? "none" : names);
    }
    for (int i = index + 1; i < schema.num_columns(); ++i) {
      if (schema.Column(i)->path()->ToDotString() == name)
        throw Error(ExitCode::data,
                    "{}: two columns are named \"{}\": rename one of them, or name another column with --field",
                    path.native(), name);
    }
    const parquet::ColumnDescriptor& found = *schema.Column(index);
    if (found.physical_type() != parquet::Type::BYTE_ARRAY || found.max_repetition_level() > 0) {
      throw Error(ExitCode::data, "{}: column \"{}\" is {} {}, must be one of strings", path.native(), name,
                  found.max_repetition_level() > 0 ? "a list of" : "of type",
                  parquet::TypeToString(found.physical_type()));
    }
    return index;
  }

  void check_row_count() const {
    const parquet::FileMetaData& metadata = *file->metadata();
    int64_t in_groups = 0;
    for (int i = 0; i < metadata.num_row_groups(); ++i) in_groups += metadata.RowGroup(i)->num_rows();
    if (in_groups != metadata.num_rows()) {
      throw Error(ExitCode::data, "{}: the Parquet data cannot be read: its row groups have {} rows, and it says {}",
                  path.native(), in_groups, metadata.num_rows());
    }
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
        if (reader->Skip(rows) != rows) refuse_missing_rows(rows_of_groups_before() + rows);
        group_rows = rows;
      }
      rows -= std::min(rows, in_group);
    }
  }

  void open_group() {
    const auto metadata = file->metadata()->RowGroup(group)->ColumnChunk(column);
    const int64_t stored = metadata->total_compressed_size();
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
    if (stored < 0 || stored > file_bytes) {
      throw Error(ExitCode::data,
                  "{}: the Parquet data cannot be read: row group {} claims {} bytes, and the file has {}",
                  path.native(), group, stored, file_bytes);
    }
    pool.set_column_bytes(std::clamp<int64_t>(metadata->total_uncompressed_size(), stored, most_column_bytes));
    group_reader = file->RowGroup(group++);
    reader = std::static_pointer_cast<parquet::ByteArrayReader>(group_reader->Column(column));
    group_rows = 0;
  }

  // The footer states the number of rows in three places and has no checksum, so they are compared.
  void close_group() {
    if (!reader) return;
    const int64_t promised = file->metadata()->RowGroup(group - 1)->num_rows();
    if (group_rows != promised) {
      throw Error(ExitCode::data, "{}: the Parquet data cannot be read: row group {} has {} of its {} rows",
                  path.native(), group - 1, group_rows, promised);
    }
    reader.reset();
  }

  int64_t rows_of_groups_before() const {
    int64_t rows = 0;
    for (int i = 0; i + 1 < group; ++i) rows += file->metadata()->RowGroup(i)->num_rows();
    return rows;
  }

  [[noreturn]] void refuse_missing_rows(int64_t wanted) const {
    throw Error(ExitCode::data, "{}: the Parquet data cannot be read: there is no row {}", path.native(), wanted);
  }

  int64_t read(std::string& bytes, size_t wanted_bytes) {
    int64_t rows = 0;
    while (bytes.size() < wanted_bytes) {
      if (!reader || !reader->HasNext()) {
        close_group();
        if (group == file->metadata()->num_row_groups()) break;
        open_group();
        continue;
      }
      int64_t num_values = 0;
      // A batch lies within one page, which holds the values.
      const int64_t count = reader->ReadBatch(batch_rows, levels.data(), nullptr, values.data(), &num_values);
      const int16_t present = reader->descr()->max_definition_level();
      size_t value = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (present > 0 && levels[i] < present) {
          append_row_text(bytes, nullptr, null_row_text);
          continue;
        }
        const parquet::ByteArray& text = values[value++];
        append_row_text(bytes, text.ptr, text.len);
      }
      rows += count;
      group_rows += count;
      // A damaged reader that announces more rows and gives none would make this loop endless.
      if (count == 0) refuse_missing_rows(rows_of_groups_before() + group_rows + 1);
    }
    return rows;
  }

  static constexpr int64_t most_column_bytes = int64_t{1} << 40;

  std::filesystem::path path;
  BoundedPool pool;  // declared first: outlives the readers that allocate from it
  std::unique_ptr<parquet::ParquetFileReader> file;
  int column = 0;
  int group = 0;           // next row group to open
  int64_t group_rows = 0;  // rows read of the open row group
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

}  // namespace gptrain::data
