// cuBLASLt without a device: a library of its name offers algorithms of which some are slow, wrong, or refused, as real
// versions had. cublaslt_stand_in.cpp defines the functions that cuda/device/ calls, with the signatures of its header;
// products run on streams.h. The library is opened at run time, so tests find its controls by their names, too.
#pragma once

#include <cstdint>
#include <cublasLt.h>

namespace cublaslt_stand_in {

// The property of an algorithm that decides if it may be used.
enum class Behaviour : uint64_t {
  right,
  omits_end,       // leaves out the last term of each sum
  varies,          // rounds one element otherwise in every other run
  leaves_last,     // does not write the last element
  refuses,         // is offered and does not start
  needs_too_much,  // is offered with more workspace than was asked for
  rounds_parts,    // adds parts that were rounded to 16 bits
  count,
};

// The algorithms that the library offers for each product, in its order, and their times.
struct Offer {
  Behaviour behaviour;
  int64_t microseconds;
};
constexpr int most_offers = 8;

struct Controls {
  Offer offers[most_offers] = {};
  int num_offers = 0;
  cublasStatus_t heuristic = CUBLAS_STATUS_SUCCESS;  // answer when it is asked for algorithms
  cublasStatus_t check = CUBLAS_STATUS_SUCCESS;      // answer about an algorithm of a record
  cublasStatus_t start = CUBLAS_STATUS_SUCCESS;      // answer to each product
};

struct Counts {
  int heuristics, checks, products;
  int wrong_uses;  // e.g. a workspace that is smaller than the algorithm's
};

}  // namespace cublaslt_stand_in

extern "C" {

// Sets the offers and answers of later calls, and the counts to 0.
void cublaslt_stand_in_begin(const cublaslt_stand_in::Controls* controls);
cublaslt_stand_in::Counts cublaslt_stand_in_counts();

}  // extern "C"
