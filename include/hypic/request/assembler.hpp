// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "hypic/core/exec.hpp"
#include "hypic/request/batch_plan.hpp"
#include "hypic/segment/rows.hpp"
#include "hypic/segment/seam_attention.hpp"
#include "hypic/segment/seam_repair.hpp"
#include "hypic/segment/short_convolution.hpp"
#include "hypic/store/record.hpp"

namespace hypic::inline v0 {

/// A record that a batch reuses: a leased or freshly computed block and its layout. Both outlive the assembler.
struct record_view {
  record_layout const* layout = nullptr;
  std::byte const* block = nullptr;
};

/// A request's own memory for one attention layer; row j belongs to position j.
/// Shapes: keys [>= prompt_tokens, kv_heads, key_dim], values alike. Rows before the plan's first span hold what earlier
/// pieces of the prompt left there.
struct request_cache {
  tensor_view<float, 3> keys{};
  tensor_view<float, 3> values{};
};

/// The second pass: walks a batch's spans layer by layer while the host forwards the plan's rows.
///   For a linear layer the host makes the raw rows, asks for `tails` (where there is a convolution), convolves, and calls
///   `linear`; for an attention layer it makes q, k, v at the plan's true positions and calls `attention`.
/// Layers may be asked for in any order and again; the assembler holds no state between calls.
/// Guarantees: the calls allocate nothing; the same bits for any number of threads and in any batch.
class HYPIC_API assembler {
 public:
  assembler(assembler&&) = default;
  assembler& operator=(assembler&&) = default;

  /// Checks that every reused span has its record.
  /// Shapes: records [plan.records]. `state_slots`: slots of the host's pools of states and tails.
  /// Errors: invalid_shape (a record made for other layers or another length), invalid_argument, out_of_range (slots),
  ///         unsupported, out_of_memory.
  static result<assembler> make(model_layout const& layout, batch_plan plan, std::span<record_view const> records,
                                std::int64_t state_slots);

  batch_plan const& plan() const noexcept { return plan_; }

  /// Scratch that any one call needs with that many threads.
  std::int64_t workspace_bytes(int threads) const noexcept;

  /// The convolution runs of the batch: run i reads `tails[i]`.
  std::span<convolution_run const> convolution_runs() const noexcept { return convolution_runs_; }

  /// The tail before each span, and the final ones in their slots.
  /// Shapes: raw [rows, channels]; pool [slots, K-1, channels]; tails [runs, K-1, channels]. Errors: invalid_shape,
  ///         invalid_argument (not a layer with a convolution).
  status tails(std::int32_t layer, tensor_view<float const, 2> raw, tensor_view<float, 3> pool,
               tensor_view<float, 3> tails, host_exec const& ex) const;

  /// One linear layer: outputs of the forwarded rows, final states in their slots.
  /// Shapes: as of `segment_prefill`; o [rows, value_heads, Dv]; states [slots, value_heads, Dk, Dv], any strides; flags
  ///         [requests] or empty. Errors: those of `seam_repair`.
  status linear(std::int32_t layer, query_rows_view const& in, repair_outputs const& out, host_exec const& ex) const;

  /// One attention layer: cached keys and values into place, fresh ones beside them, then attention.
  /// Shapes: q [rows, query_heads, key_dim] and k [rows, kv_heads, key_dim] turned to true positions, v; caches
  ///         [requests]; o [rows, query_heads, value_dim]. Errors: those of `rebase_keys` and `seam_attention`.
  status attention(std::int32_t layer, tensor_view<float const, 3> q, tensor_view<float const, 3> k,
                   tensor_view<float const, 3> v, std::span<request_cache const> caches, tensor_view<float, 3> o,
                   host_exec const& ex) const;

 private:
  /// A linear layer's walk: `cached` points into the records' blocks and into `turns`.
  struct linear_walk {
    repair_plan plan;
    std::vector<rotation> turns{};
    std::vector<cached_span> cached{};
    std::vector<tensor_view<float const, 3>> tails{};  ///< of each run, in groups; empty where nothing is cached
    std::int64_t tail_rows = 0;
    std::int64_t tail_channels = 0;
    std::int64_t tail_groups = 1;
  };
  /// A cached run of an attention layer: rows [skip, tokens) of its record go to position `start + skip`.
  struct cached_keys {
    std::int64_t request = 0;
    std::int64_t first_position = 0;
    rotation turn;
    tensor_view<float const, 3> keys;
    tensor_view<float const, 3> values;
  };
  struct attention_walk {
    attention_plan plan;
    std::vector<cached_keys> cached;
  };
  using layer_walk = std::variant<linear_walk, attention_walk>;

  assembler() = default;
  linear_walk make_linear_walk(std::int32_t layer, linear_layer const& shape, repair_plan plan,
                               std::span<record_view const> records) const;
  attention_walk make_attention_walk(std::int32_t layer, attention_layer const& shape,
                                     std::span<record_view const> records) const;

  void walk_tails(linear_walk const& walk, seam_chain const& chain, tensor_view<float const, 2> raw,
                  tensor_view<float, 3> pool, tensor_view<float, 3> tails) const;
  status check_layer(std::int32_t layer) const noexcept;
  status check_attention(attention_walk const& walk, tensor_view<float const, 3> k, tensor_view<float const, 3> v,
                         std::span<request_cache const> caches) const noexcept;
  static std::int64_t view_bytes(attention_walk const& walk) noexcept;
  static std::int64_t attention_workspace_bytes(attention_walk const& walk, int threads) noexcept;

  batch_plan plan_;
  std::vector<std::int64_t> positions_;  // of every row of the batch
  std::vector<convolution_run> convolution_runs_;
  std::vector<layer_walk> walks_;
};

}  // namespace hypic::inline v0
