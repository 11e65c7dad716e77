// Builds a DocumentTable. One block per piece walks over the tokens of its sequences, numbers those at which a document
// starts, and writes the table from their positions.
#include <initializer_list>

#include "kernels/documents.h"
#include "launch.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned num_threads = 256;
constexpr int num_warps = num_threads / 32;
constexpr int tokens_of_thread = 8;  // neighbouring tokens per thread and round

// Elements from one sequence of an operand to the next, and from one token to the next.
struct Steps {
  int64_t of_sequence, of_token;
};

struct TableOperands {
  const int32_t* document_starts;  // [batch, tokens]
  int64_t tokens;
  int64_t sequences, capacity;  // sequences per piece, and documents that fit
  int32_t* overflow;            // [batch]
  // Addresses for the first piece (see DocumentTable). The next piece begins piece_bytes later, the next operand's
  // offsets array_bytes later.
  int32_t *first_rows, *lengths;
  int64_t* offsets;
  int64_t piece_bytes, array_bytes;
  int num_steps;
  Steps steps[document_operands];
};

template <typename T>
__device__ T* later(T* data, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(data) + bytes);
}

struct WarpCounts {
  int begun[num_warps];
};

// Returns the sum over lanes 0 to the own one.
__device__ inline int sum_up_to_lane(int value) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_sync(0xffffffff, value, lane >= lanes ? lane - lanes : lane);
    if (lane >= lanes) value += before;
  }
  return value;
}

// Writes the first rows of the documents that fit, and of one more. Returns the number of documents.
__device__ inline int number_documents(const TableOperands& op, int32_t* first_rows) {
  auto& counts = shared<WarpCounts>();
  const int64_t rows = op.sequences * op.tokens;
  const int32_t* const starts = op.document_starts + blockIdx.x * rows;
  int begun_before = 0;
  for (int64_t base = 0; base < rows; base += num_threads * tokens_of_thread) {
    const int64_t row = base + threadIdx.x * tokens_of_thread;
    bool begins[tokens_of_thread];
    int own = 0;
    for (int i = 0; i < tokens_of_thread; ++i) {
      begins[i] = row + i < rows && starts[row + i] == (row + i) % op.tokens;
      own += begins[i] ? 1 : 0;
    }
    const int of_warp = sum_up_to_lane(own);
    if (threadIdx.x % 32 == 31) counts.begun[threadIdx.x / 32] = of_warp;
    __syncthreads();
    int number = begun_before + of_warp - own;
    for (unsigned warp = 0; warp < num_warps; ++warp) {
      begun_before += counts.begun[warp];
      if (warp < threadIdx.x / 32) number += counts.begun[warp];
    }
    for (int i = 0; i < tokens_of_thread; ++i) {
      if (!begins[i]) continue;
      if (number <= op.capacity) first_rows[number] = static_cast<int32_t>(row + i);
      ++number;
    }
    __syncthreads();  // until no thread reads the counts
  }
  return begun_before;
}

__global__ void __launch_bounds__(num_threads) fill_table(TableOperands op) {
  const int64_t piece = blockIdx.x;
  int32_t* const first_rows = later(op.first_rows, piece * op.piece_bytes);
  const int found = number_documents(op, first_rows);
  for (int64_t i = threadIdx.x; i <= op.capacity; i += num_threads) {
    if (i >= found) first_rows[i] = static_cast<int32_t>(op.sequences * op.tokens);
  }
  for (int64_t i = threadIdx.x; i < op.sequences; i += num_threads)
    op.overflow[piece * op.sequences + i] = found > op.capacity ? 1 : 0;
  __syncthreads();
  int32_t* const lengths = later(op.lengths, piece * op.piece_bytes);
  int64_t* const offsets = later(op.offsets, piece * op.piece_bytes);
  for (int64_t i = threadIdx.x; i <= op.capacity; i += num_threads) {
    const int64_t first = first_rows[i];
    if (i < op.capacity) lengths[i] = first_rows[i + 1] - first_rows[i];
    const int64_t sequence = first / op.tokens, token = first % op.tokens;
    for (int n = 0; n < op.num_steps; ++n)
      later(offsets, n * op.array_bytes)[i] = sequence * op.steps[n].of_sequence + token * op.steps[n].of_token;
  }
}

void add_steps(TableOperands& operands, std::initializer_list<Matrix> matrices) {
  for (const Matrix& matrix : matrices)
    operands.steps[operands.num_steps++] = {operands.tokens * matrix.stride, matrix.stride};
}

// Fills in the operands that both ops have.
template <typename Op>
TableOperands operands_of(const DocumentTable& table, const Op& op) {
  TableOperands operands{.document_starts = op.mask.document_starts,
                         .tokens = op.sequence_length,
                         .sequences = table.sequences(),
                         .capacity = table.documents(),
                         .overflow = table.overflow(),
                         .first_rows = table.first_rows(0),
                         .lengths = table.lengths(0),
                         .offsets = table.offsets(0, DocumentOperand{}),
                         .piece_bytes = document_piece_bytes(table.documents()),
                         .array_bytes = document_array_bytes(table.documents()),
                         .num_steps = 0,
                         .steps = {}};
  add_steps(operands, {op.q, op.k, op.v, op.o});
  operands.steps[operands.num_steps++] = {op.num_heads * op.lse.stride, 1};
  return operands;
}

void start(const DocumentTable& table, const TableOperands& operands, Stream stream) {
  launch(stream, {table.num_pieces(), num_threads, sizeof(WarpCounts)}, fill_table, operands);
}

}  // namespace

void list_documents(const DocumentTable& table, const AttentionForward& op, Stream stream) {
  start(table, operands_of(table, op), stream);
}

void list_documents(const DocumentTable& table, const AttentionBackward& op, Stream stream) {
  TableOperands operands = operands_of(table, op);
  add_steps(operands, {op.d_o, op.dq, op.dk, op.dv});
  start(table, operands, stream);
}

}  // namespace gptrain::cuda
