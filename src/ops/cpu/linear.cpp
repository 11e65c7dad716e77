#include "ops/cpu/linear.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_version.h>
#include <optional>
#include <vector>

#include "base/error.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/tiled_linear.h"
#include "ops/fused_product.h"

namespace gptrain::inline ops {
namespace {

static_assert(DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP,
              "threads of gptrain's teams share out products: oneDNN has to run on OpenMP, too");

// c [rows, cols] = a [rows, depth] b [depth, cols] (+ bias), or += with `accumulate`. A transposed factor is stored
// with its second dimension as rows.
struct Product {
  Matrix a, b, bias, c;
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;

  int64_t rows() const { return c.rows; }
  int64_t cols() const { return c.cols; }
  int64_t depth() const { return a_transposed ? a.rows : a.cols; }

  Product row_range(int64_t first, int64_t count) const {
    Product part = *this;
    part.a = a_transposed ? a.column_range(first, count) : a.row_range(first, count);
    part.c = c.row_range(first, count);
    return part;
  }
  Product column_range(int64_t first, int64_t count) const {
    Product part = *this;
    part.b = b_transposed ? b.row_range(first, count) : b.column_range(first, count);
    if (bias.given()) part.bias = bias.column_range(first, count);
    part.c = c.column_range(first, count);
    return part;
  }
};

Product product_of(const LinearForward& op) {
  Product product;
  product.a = op.x;
  product.b = op.w;
  product.b_transposed = true;
  product.bias = op.bias;
  product.c = op.y;
  return product;
}

int64_t row_stride(const Matrix& matrix) { return matrix.rows <= 1 ? matrix.cols : matrix.stride; }
bool is_dense(const Matrix& matrix) { return row_stride(matrix) == matrix.cols; }
bool is_dense(const Product& product) { return is_dense(product.a) && is_dense(product.b) && is_dense(product.c); }

// A product cut into parts, each of which one thread computes.
struct Cut {
  bool columns;  // parts are columns; false: rows
  int64_t length;
  int64_t size;  // rows or columns of every part but the last

  int64_t num_parts() const { return (length + size - 1) / size; }
  Product part(const Product& product, int64_t index) const {
    const int64_t first = index * size;
    const int64_t count = std::min(size, length - first);
    return columns ? product.column_range(first, count) : product.row_range(first, count);
  }
};

// Cuts a product into a multiple of `divisor` parts, if parts of that size are large enough to keep packing their
// operands cheap.
Cut cut_of(const Product& product, int64_t divisor) {
  constexpr int64_t least = 64, most = 256, step = 16;
  // In f32 without transposed operands, parts are columns: oneDNN packs b only if it is given a part of the columns,
  // and products with b not packed take 15 to 40% longer.
  const bool columns = product.a.dtype == DType::f32 && !product.a_transposed && !product.b_transposed;
  const int64_t length = columns ? product.cols() : product.rows();
  const int64_t parts = ((length + most - 1) / most + divisor - 1) / divisor * divisor;
  return {columns, length, std::max(least, ((length + parts - 1) / parts + step - 1) / step * step)};
}

// Blocks of a product's result, for MatrixKernels::linear_block.
struct Blocks {
  int64_t rows, cols;  // sizes of every block but the last ones

  static int64_t count(int64_t length, int64_t size) { return (length + size - 1) / size; }
};

// Cuts a product into blocks, a multiple of num_threads if the blocks stay large.
Blocks blocks_of(const Product& product, int num_threads) {
  constexpr int64_t least = 128;
  const auto size_of = [](int64_t length, int64_t parts) {
    return ((length + parts - 1) / parts + linear_block_strip - 1) / linear_block_strip * linear_block_strip;
  };
  const auto multiple = [num_threads](int64_t parts) { return (parts + num_threads - 1) / num_threads * num_threads; };
  int64_t down = product.depth() > linear_block_depth ? Blocks::count(product.rows(), linear_block_rows) : 1;
  int64_t across = Blocks::count(product.cols(), linear_block_cols);
  if (down * across % num_threads != 0) {
    (product.cols() / multiple(across) >= least ? across : down) = multiple(across);
  }
  return {size_of(product.rows(), down), size_of(product.cols(), across)};
}

// Key of a oneDNN primitive: the shape and options that it was built for.
struct ProductKey {
  int num_threads;
  int64_t rows, cols, depth;
  int64_t a_stride, b_stride, c_stride;
  DType operand_dtype, c_dtype;
  bool a_transposed, b_transposed, bias, accumulate;
  auto operator<=>(const ProductKey&) const = default;
};

dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// A primitive with its memory objects, so that a call only sets pointers.
struct Primitive {
  struct Memories {
    dnnl::memory a, b, c, bias, scratch;
  };
  dnnl::matmul matmul;
  std::vector<Memories> of_thread;  // one for each thread that may run the primitive
};

// Hides a difference of oneDNN's versions: version 3 has no operation descriptors.
dnnl::matmul::primitive_desc describe_product(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b, const dnnl::memory::desc* bias,
                                              const dnnl::memory::desc& c, const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  if (bias != nullptr) return dnnl::matmul::primitive_desc(engine, a, b, *bias, c, attributes);
  return dnnl::matmul::primitive_desc(engine, a, b, c, attributes);
#else
  const auto operation = bias != nullptr ? dnnl::matmul::desc(a, b, *bias, c) : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul::primitive_desc(operation, attributes, engine);
#endif
}

dnnl::memory::desc plain_desc(int64_t rows, int64_t cols, int64_t stride, DType dtype, bool transposed) {
  using Dims = dnnl::memory::dims;
  return dnnl::memory::desc({rows, cols}, dnnl_type(dtype), transposed ? Dims{1, stride} : Dims{stride, 1});
}

}  // namespace

int64_t cpu_scratch_bytes(const LinearForward&, int num_threads) { return linear_scratch_bytes(num_threads); }
int64_t cpu_scratch_bytes(const LinearBackwardInput&, int num_threads) { return linear_scratch_bytes(num_threads); }
int64_t cpu_scratch_bytes(const LinearBackwardWeight&, int num_threads) { return linear_scratch_bytes(num_threads); }

class CpuLinear::Products {
 public:
  Products(int num_threads, bool thread_independent)
      : num_threads_(num_threads), thread_independent_(thread_independent), engine_(dnnl::engine::kind::cpu, 0) {
    for (int thread = 0; thread < num_threads; ++thread) streams_.emplace_back(engine_);
  }

  // THROWS Error(device) if `bytes` is below the bound.
  void use_scratch(std::byte* scratch, int64_t bytes) {
    if (bytes < linear_scratch_bytes(num_threads_)) {
      throw Error(ExitCode::device, "a linear needs {} bytes of scratch memory and has {}",
                  linear_scratch_bytes(num_threads_), bytes);
    }
    scratch_ = scratch;
  }

  void run(const Product& product) {
    if (run_blocks(product) || run_parts(product)) return;
    const TeamSize threads(num_threads_);
    const Primitive* const primitive = thread_independent_ ? nullptr : find(product, num_threads_);
    if (primitive != nullptr) {
      check(execute(*primitive, product, 0));
    } else {
      run_tiled(product);
    }
  }

  // A product with a long depth, in slices if oneDNN would otherwise need a copy of c per thread. REQUIRES: both
  // factors are stored with the depth as rows (a_transposed, not b_transposed), and c is f32.
  void run_long_sum(const Product& product) {
    if (run_blocks(product) || run_parts(product)) return;
    if (thread_independent_) return run_tiled(product);
    const TeamSize threads(num_threads_);
    const int64_t depth = product.depth();
    constexpr int64_t shortest_slice = 512;
    int64_t slice = depth;
    while (!run_slices(product, slice)) {
      slice = (slice + 1) / 2;
      if (slice < shortest_slice) return run_tiled(product);
    }
  }

  // A product whose b was copied to memory of its own in the layout that oneDNN prefers.
  std::unique_ptr<PackedLinear> pack(const Product& product, const Backend::Allocate& allocate) {
    if (!is_dense(product) || !serves(product.a.dtype)) return nullptr;
    const TeamSize threads(num_threads_);
    const ProductKey key = key_of(product, num_threads_);
    std::optional<Primitive> primitive = make_primitive(key, true);
    if (!primitive) return nullptr;
    dnnl::memory& b = primitive->of_thread.front().b;
    const auto bytes = static_cast<int64_t>(b.get_desc().get_size());
    std::unique_ptr<DeviceMemory> memory = allocate(bytes);
    b.set_data_handle(memory->data());
    dnnl::memory plain(plain_desc(key.depth, key.cols, key.b_stride, key.operand_dtype, key.b_transposed), engine_,
                       product.b.data);
    dnnl::reorder(plain, b).execute(streams_.front(), plain, b);
    Product packed = product;
    packed.b.data = memory->data();
    return std::make_unique<PackedProduct>(*this, packed, std::move(*primitive), std::move(memory));
  }

  void add_column_sums(const Matrix& values, const Matrix& sums, bool accumulate) {
    const MatrixKernels& kernels = select_matrix_kernels();
    const int64_t rounds = (values.cols + num_threads_ * column_sum_width - 1) / (num_threads_ * column_sum_width);
    const int64_t parts = rounds * num_threads_;
    const int64_t width = ((values.cols + parts - 1) / parts + 15) / 16 * 16;
#pragma omp parallel for num_threads(num_threads_) schedule(static)
    for (int64_t col = 0; col < values.cols; col += width) {
      const int64_t cols = std::min(width, values.cols - col);
      kernels.column_sums(values.column_range(col, cols).data, values.dtype, values.stride, values.rows, cols,
                          accumulate, sums.as<float>() + col);
    }
  }

 private:
  class PackedProduct final : public PackedLinear {
   public:
    PackedProduct(Products& products, const Product& product, Primitive primitive, std::unique_ptr<DeviceMemory> memory)
        : products_(products), product_(product), primitive_(std::move(primitive)), memory_(std::move(memory)) {}

    void run() override {
      const TeamSize threads(products_.num_threads_);
      check(products_.execute(primitive_, product_, 0));
    }

   private:
    Products& products_;
    Product product_;
    Primitive primitive_;
    std::unique_ptr<DeviceMemory> memory_;  // the packed b
  };

  // Computes blocks on AMX tiles. RETURNS false, without effect, if the CPU has none, or oneDNN is faster.
  bool run_blocks(const Product& product) {
    const MatrixKernels& kernels = select_matrix_kernels();
    // Blocks pack all of b, at a cost that rows share: more of it if b is transposed.
    const int64_t least_rows = product.b_transposed ? 512 : 128;
    if (kernels.linear_block == nullptr || product.a.dtype != DType::bf16 || product.rows() < least_rows) return false;
    const TiledLinear op = tiled_op_of(product);
    const Blocks blocks = blocks_of(product, num_threads_);
    const int64_t down = Blocks::count(op.rows, blocks.rows), across = Blocks::count(op.cols, blocks.cols);
#pragma omp parallel for num_threads(num_threads_) schedule(dynamic, 1)
    for (int64_t index = 0; index < down * across; ++index) {
      ScratchCarver carver(scratch_ + omp_get_thread_num() * linear_scratch_bytes(1));
      const int64_t row = index % down * blocks.rows, col = index / down * blocks.cols;
      kernels.linear_block(op, {row, col, std::min(blocks.rows, op.rows - row), std::min(blocks.cols, op.cols - col)},
                           carve_block(carver));
    }
    return true;
  }

  // Computes each part on one thread. With large parts for all threads this is fastest, as threads do not wait for each
  // other. RETURNS false, without effect, if the parts are too small or oneDNN does not support them.
  bool run_parts(const Product& product) {
    // Divisor that suits most thread counts, used if the parts must not depend on the thread count.
    constexpr int64_t fixed_divisor = 8;
    const Cut cut = cut_of(product, thread_independent_ ? fixed_divisor : num_threads_);
    const int64_t num_parts = cut.num_parts();
    // Every part of rows reads and packs all of w, which does not pay for few rows.
    constexpr int64_t least_rows = 192;
    // Parts of transposed rows would have oneDNN generate kernels for 60 ms, too long for so little work.
    constexpr int64_t least_work = int64_t{1} << 18;
    const bool small = num_parts < num_threads_ || product.rows() * product.cols() * product.depth() < least_work ||
                       (!cut.columns && !product.a_transposed && cut.size < least_rows);
    if (!is_dense(product) || (!thread_independent_ && small)) return false;
    const TeamSize one(1);
    const Primitive* const usual = find(cut.part(product, 0), 1);
    const Primitive* const last = find(cut.part(product, num_parts - 1), 1);
    if (usual == nullptr || last == nullptr) return false;
    int status = dnnl_success;  // exceptions must not leave an OpenMP thread
#pragma omp parallel for num_threads(num_threads_) schedule(dynamic, 1) reduction(max : status)
    for (int64_t index = 0; index < num_parts; ++index) {
      const Primitive& primitive = index + 1 < num_parts ? *usual : *last;
      status = std::max(status, execute(primitive, cut.part(product, index), omp_get_thread_num()));
    }
    check(status);
    return true;
  }

  static Product slice_of(const Product& product, int64_t first, int64_t count) {
    Product part = product;
    part.a = product.a.row_range(first, count);
    part.b = product.b.row_range(first, count);
    part.accumulate = product.accumulate || first > 0;
    return part;
  }

  // RETURNS false, without effect, if oneDNN does not support every slice.
  bool run_slices(const Product& product, int64_t slice) {
    const int64_t depth = product.depth();
    const int64_t last = (depth - 1) / slice * slice;
    for (const int64_t first : {int64_t{0}, std::min(slice, last), last}) {
      if (find(slice_of(product, first, std::min(slice, depth - first)), num_threads_) == nullptr) return false;
    }
    for (int64_t first = 0; first < depth; first += slice) {
      const Product part = slice_of(product, first, std::min(slice, depth - first));
      check(execute(*find(part, num_threads_), part, 0));
    }
    return true;
  }

  static bool serves(DType dtype) {
    return dtype != DType::bf16 ||
           (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
  }

  static ProductKey key_of(const Product& product, int num_threads) {
    return {num_threads,           product.rows(),        product.cols(),    product.depth(), row_stride(product.a),
            row_stride(product.b), row_stride(product.c), product.a.dtype,   product.c.dtype, product.a_transposed,
            product.b_transposed,  product.bias.given(),  product.accumulate};
  }

  // RETURNS the primitive for a dense product or part of one, on one thread or all; nullptr if the own tiled products
  // must compute it. REQUIRES: OpenMP's default number of threads is `num_threads`.
  const Primitive* find(const Product& product, int num_threads) {
    if (!serves(product.a.dtype)) return nullptr;
    const ProductKey key = key_of(product, num_threads);
    auto found = primitives_.find(key);
    if (found == primitives_.end()) found = primitives_.emplace(key, make_primitive(key, false)).first;
    return found->second ? &*found->second : nullptr;
  }

  // packed: b is in the layout that oneDNN prefers.
  std::optional<Primitive> make_primitive(const ProductKey& key, bool packed) {
    const auto a = plain_desc(key.rows, key.depth, key.a_stride, key.operand_dtype, key.a_transposed);
    const auto b =
        packed ? dnnl::memory::desc({key.depth, key.cols}, dnnl_type(key.operand_dtype), dnnl::memory::format_tag::any)
               : plain_desc(key.depth, key.cols, key.b_stride, key.operand_dtype, key.b_transposed);
    const auto c = plain_desc(key.rows, key.cols, key.c_stride, key.c_dtype, false);
    const auto bias = plain_desc(1, key.cols, key.cols, key.operand_dtype, false);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    try {
      const auto description = describe_product(engine_, a, b, key.bias ? &bias : nullptr, c, attributes);
      const auto scratch = description.scratchpad_desc();
      if (static_cast<int64_t>(scratch.get_size()) > linear_scratch_bytes(key.num_threads)) return std::nullopt;
      const auto memory = [this](const dnnl::memory::desc& of) { return dnnl::memory(of, engine_, DNNL_MEMORY_NONE); };
      Primitive primitive{dnnl::matmul(description), {}};
      for (int thread = 0; thread < (key.num_threads == 1 ? num_threads_ : 1); ++thread) {
        primitive.of_thread.push_back({memory(a), memory(description.weights_desc()), memory(c),
                                       key.bias ? memory(bias) : dnnl::memory(),
                                       scratch.get_size() > 0 ? memory(scratch) : dnnl::memory()});
      }
      return primitive;
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return std::nullopt;
      throw Error(ExitCode::device, "oneDNN cannot make a matrix product of {} x {} x {}: {}", key.rows, key.depth,
                  key.cols, error.what());
    }
  }

  // `thread`: number of the calling thread; 0 if the primitive runs on all threads. RETURNS oneDNN's status, 0 for
  // success.
  int execute(const Primitive& primitive, const Product& product, int thread) {
    const auto index = static_cast<size_t>(thread);
    const Primitive::Memories& memories = primitive.of_thread[index];
    std::array<dnnl_exec_arg_t, 5> arguments;
    int count = 0;
    const auto pass = [&](int name, const dnnl::memory& memory, void* data) {
      dnnl_memory_set_data_handle(memory.get(), data);
      arguments[count++] = {name, memory.get()};
    };
    pass(DNNL_ARG_SRC, memories.a, product.a.data);
    pass(DNNL_ARG_WEIGHTS, memories.b, product.b.data);
    pass(DNNL_ARG_DST, memories.c, product.c.data);
    if (product.bias.given()) pass(DNNL_ARG_BIAS, memories.bias, product.bias.data);
    if (memories.scratch.get(true) != nullptr) {
      pass(DNNL_ARG_SCRATCHPAD, memories.scratch, scratch_ + thread * linear_scratch_bytes(1));
    }
    return dnnl_primitive_execute(primitive.matmul.get(), streams_[index].get(), count, arguments.data());
  }

  static void check(int status) {
    if (status != dnnl_success) {
      throw Error(ExitCode::device, "oneDNN failed to run a matrix product (status {})", status);
    }
  }

  static TiledLinear tiled_op_of(const Product& product) {
    return {.rows = product.rows(),
            .cols = product.cols(),
            .depth = product.depth(),
            .a = product.a.data,
            .b = product.b.data,
            .operand_dtype = product.a.dtype,
            .a_row_stride = product.a_transposed ? 1 : product.a.stride,
            .a_col_stride = product.a_transposed ? product.a.stride : 1,
            .b_row_stride = product.b_transposed ? 1 : product.b.stride,
            .b_col_stride = product.b_transposed ? product.b.stride : 1,
            .bias = product.bias.data,
            .c = product.c.data,
            .c_dtype = product.c.dtype,
            .c_stride = product.c.stride,
            .accumulate = product.accumulate};
  }

  void run_tiled(const Product& product) {
    const MatrixKernels& kernels = select_matrix_kernels();
    const TiledLinear op = tiled_op_of(product);
    const int64_t thread_bytes = tiled_buffer_bytes();
#pragma omp parallel num_threads(num_threads_)
    {
      ScratchCarver carver(scratch_ + omp_get_thread_num() * thread_bytes);
      const TiledLinearBuffers buffers = carve_tiled(carver);
#pragma omp for collapse(2) schedule(static)
      for (int64_t row = 0; row < op.rows; row += tile_size) {
        for (int64_t col = 0; col < op.cols; col += tile_size) kernels.tiled_linear(op, row, col, buffers);
      }
    }
  }

  int num_threads_;
  bool thread_independent_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;  // one for each thread
  std::byte* scratch_ = nullptr;
  std::map<ProductKey, std::optional<Primitive>> primitives_;
};

CpuLinear::CpuLinear(int num_threads, bool thread_independent)
    : products_(std::make_unique<Products>(num_threads, thread_independent)) {}
CpuLinear::~CpuLinear() = default;

void CpuLinear::run(const LinearForward& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  products_->run(product_of(op));
}

std::unique_ptr<PackedLinear> CpuLinear::pack(const LinearForward& op, const Backend::Allocate& allocate,
                                              std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  return products_->pack(product_of(op), allocate);
}

void CpuLinear::run(const LinearBackwardInput& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  Product product;
  product.a = op.dy;
  product.b = op.w;
  product.c = op.dx;
  products_->run(product);
}

void CpuLinear::run(const LinearBackwardWeight& op, std::byte* scratch, int64_t scratch_bytes) {
  products_->use_scratch(scratch, scratch_bytes);
  Product product;
  product.a = op.dy;
  product.a_transposed = true;
  product.b = op.x;
  product.c = op.dw;
  product.accumulate = op.accumulate;
  products_->run_long_sum(product);
  if (op.d_bias.given()) products_->add_column_sums(op.dy, op.d_bias, op.accumulate);
}

void CpuLinear::run(const BiasGradient& op) { products_->add_column_sums(op.dy, op.d_bias, op.accumulate); }

void cpu_run(const LinearForward& op, const CpuContext& context) {
  context.linear->run(product_alone(op), context.scratch, context.scratch_bytes);
  if (op.pre_activation.given()) cpu_run(activation_of(op), context);
}

void cpu_run(const LinearBackwardInput& op, const CpuContext& context) {
  context.linear->run(product_alone(op), context.scratch, context.scratch_bytes);
  if (op.pre_activation.given()) cpu_run(activation_of(op), context);
}

void cpu_run(const LinearBackwardWeight& op, const CpuContext& context) {
  context.linear->run(op, context.scratch, context.scratch_bytes);
}

void cpu_run(const BiasGradient& op, const CpuContext& context) { context.linear->run(op); }

}  // namespace gptrain::ops
