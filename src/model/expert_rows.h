// Dispatch of rows to the experts of a mixture, and their return, whether all experts are on this rank or they are
// spread over ranks.
#pragma once

#include <memory>

#include "model/layer.h"

namespace gptrain::inline model {

// The fields of a router's results (RouteTokens), for N rows and k experts of each.
struct RoutedFields {
  LayerLayout::Field rows;     // [1, N k]
  LayerLayout::Field weights;  // [1, N k]
  LayerLayout::Field offsets;  // [1, E + 1]
};

// Dispatches the rows of one layer; the FFN branch with experts (routed.cpp) calls it. If experts are spread over
// ranks, route, send_... and take_back... exchange rows on the lane of ExpertParallel: all ranks that share experts
// call them in the same order. Functions of W (inputs, gradients) exchange nothing.
class ExpertRows {
 public:
  virtual ~ExpertRows() = default;
  ExpertRows(const ExpertRows&) = delete;
  ExpertRows& operator=(const ExpertRows&) = delete;

  // RETURN the number of this rank's experts, the number of the first of them in the layer, and R, the most rows that
  // they can get.
  virtual int64_t experts() const = 0;
  virtual int64_t first_expert() const = 0;
  virtual int64_t rows() const = 0;
  // RETURNS the rows that this rank's experts get if all experts get equally many; -1: R rows.
  virtual int64_t expected_rows() const = 0;

  // Reads from the router's results which rows go to which expert, and fills offsets(), the first row of each expert
  // and then the number of rows, and weights(), the router's weight of each row. Call in each pass that runs the router
  // (forward, recompute), after it and before the functions below.
  virtual void route(const LayerCall& call) = 0;
  // RETURNS the rows of this rank that experts had no room for in the last call of `route`, and that are left out.
  virtual int64_t lost_rows() const { return 0; }
  virtual Matrix offsets(const LayerCall& call) const = 0;  // [1, experts() + 1]
  virtual Matrix weights(const LayerCall& call) const = 0;  // [1, R]

  // Send the tokens' rows `x`, [N, h], to their experts: inputs in passes that run the router, gradients of the
  // experts' results in B. RETURN the rows of this rank's experts, [R, h], in a record or in `frame`.
  virtual Matrix send_inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  virtual Matrix send_gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  // RETURN the rows that send_inputs and send_gradients have returned, in W. `x`: the same rows of tokens, read only if
  // regathers_rows().
  virtual Matrix inputs(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  virtual Matrix gradients(const LayerCall& call, const Matrix& x, WorkspaceFrame& frame) = 0;
  // Returns true if W gathers the experts' rows from `x` as forward did, so that the caller must keep `x` until then.
  // False: the rows are in records.
  virtual bool regathers_rows() const = 0;

  // Return the experts' results to the ranks of their tokens. RETURN them in the order of the router's slots
  // (RouteTokens): rows, [R, h], as [N k, h], and one number for each row, [1, R], as [1, N k]; in `frame` unless they
  // are in that order already.
  virtual Matrix take_back(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) = 0;
  virtual Matrix take_back_numbers(const LayerCall& call, const Matrix& of_experts, WorkspaceFrame& frame) = 0;

 protected:
  ExpertRows() = default;
};

// RETURNS the dispatch for LayerContext::experts, and declares its records in `layout`. `layer`: number of the block.
// REQUIRES: context and layout outlive it. Layers call make_expert_rows, which calls the other if experts are spread.
std::unique_ptr<ExpertRows> make_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                             const RoutedFields& routed);
std::unique_ptr<ExpertRows> make_spread_expert_rows(const LayerContext& context, LayerLayout& layout, int64_t layer,
                                                    const RoutedFields& routed);

}  // namespace gptrain::model
